"""Handles requests to a rank while its program runs, other than for stacks. Requests are lines of JSON in a file beside
the ring of the rank; answers are in another file. Each request has a thread of its own, so the sampler continues.
"""

import _thread
import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rollcall.compat import torch_timeouts

Answer = dict[str, Any]
Handler = Callable[[dict[str, Any]], Answer]


def _wait_longer(_request: dict[str, Any]) -> Answer:
    torch_timeouts.wait_longer()
    return {}


def _wait_as_before(_request: dict[str, Any]) -> Answer:
    torch_timeouts.wait_as_before()
    return {}


def _profile(request: dict[str, Any]) -> Answer:
    from rollcall.record.on_request import profiler  # here: it imports torch's profiler, which few runs need

    return profiler.run(request)


# By the word in "do". worker/main.py adds those of a debugger.
HANDLERS: dict[str, Handler] = {
    "wait-longer": _wait_longer,
    "wait-as-before": _wait_as_before,
    "profile": _profile,
}


class Requests:
    def __init__(self, ring: Path) -> None:
        self._path, self._answers = ring.with_suffix(".requests"), ring.with_suffix(".answers")
        self._read = 0  # bytes of the file that are done

    def begin_new(self) -> int:
        """Begin the new requests in the file. Returns how many there were."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._read)
                lines = file.read().splitlines(keepends=True)
        except OSError:
            return 0
        whole = [line for line in lines if line.endswith(b"\n")]
        self._read += sum(map(len, whole))
        for line in whole:
            _thread.start_new_thread(self._do, (json.loads(line),))
        return len(whole)

    def _do(self, request: dict[str, Any]) -> None:
        handler = HANDLERS.get(request["do"], _unknown)
        try:
            answer = handler(request)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        with contextlib.suppress(OSError), open(self._answers, "a") as file:
            file.write(json.dumps({"number": request["number"], **answer}) + "\n")


def _unknown(request: dict[str, Any]) -> Answer:
    return {"error": f"its rollcall does not know how to {request['do']}: install the same version on all hosts"}
