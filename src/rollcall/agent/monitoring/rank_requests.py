"""Asks ranks to do something while their program runs: a file beside the ring says what, and a thread of the rank reads
the file."""

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

from rollcall.agent.monitoring.hang_detector import newest_ops
from rollcall.record import ring_format
from rollcall.record.on_request import stacks

_INTERVAL_S = 0.05  # between two looks at whether it is done: not noticed by a person
_NOTICE_S = 10.0  # for the rank's thread to begin; it sleeps for half a second at a time, and needs Python's lock
_NEXT_OP_S = 3.0  # longer than most steps; a rank that makes no op in this time is stopped where it is
_NOT_RECORDED = "is not recorded, or has made no process group yet, so it cannot be asked"


def ask(ring: Path | None, pid: int, number: int, request: dict[str, Any]) -> dict[str, Any]:
    """The answer of the rank that writes this ring; waits as long as the rank lives and `request["limit_s"]` allows."""
    if not pid:
        return {"error": "has ended"}
    if ring is None:
        return {"error": _NOT_RECORDED}
    answers = ring.with_suffix(".answers")
    with open(ring.with_suffix(".requests"), "a") as file:
        file.write(json.dumps({**request, "number": number, "ring": str(ring)}) + "\n")
    stacks.ask_in_ring(ring)
    limit_s = request.get("limit_s", _NOTICE_S)
    until_s = time.monotonic() + limit_s
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < until_s:
        if (answer := _answer(answers, number)) is not None:
            return answer
        time.sleep(_INTERVAL_S)
    if (answer := _answer(answers, number)) is not None:
        return answer
    return {"error": "has ended" if not os.path.exists(f"/proc/{pid}") else f"did not answer within {limit_s:g} s"}


def wait_for_next_op(ring: Path) -> None:
    """Waits until the rank has made an op that began after now, or for a while if it makes none."""
    now_ns = time.monotonic_ns()
    until_s = time.monotonic() + _NEXT_OP_S
    while time.monotonic() < until_s and not any(_began_after(record, now_ns) for record in newest_ops(ring)):
        time.sleep(_INTERVAL_S)


def _began_after(record: bytes, since_ns: int) -> bool:
    """And is over."""
    _, entered_ns, _, completed_ns, *_ = ring_format.RECORD.unpack(record)
    return bool(entered_ns > since_ns and completed_ns > 0)


def _answer(path: Path, number: int) -> dict[str, Any] | None:
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            found: dict[str, Any] = json.loads(line)
            if found["number"] == number:
                return found
    return None
