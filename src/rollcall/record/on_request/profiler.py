"""Runs torch.profiler for some steps of a rank. The program is not changed.

The main thread starts and stops the profiler, since torch profiles the thread that started it. A step is one of an
optimizer, where the program has one; else it lasts from one op to the next one on the same line.
"""

import gc
import gzip
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import ProfilerActivity, profile

from rollcall.record import ring_format
from rollcall.record.on_request.main_thread import PendingCall

SUFFIX = ".profile.json.gz"
_INTERVAL_S = 0.005  # between two looks at the ring
_MAIN_S = 30.0  # for the main thread to reach a line of Python
_SILENT = "99"
_busy = threading.Lock()


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Profile `steps` steps, for `seconds` at most; where the trace is, and how many steps it has."""
    if not _busy.acquire(blocking=False):
        return {"error": "is being profiled already: wait until that is over"}
    try:
        return _profile(Path(request["ring"]), request["steps"], request["seconds"])
    finally:
        _busy.release()


def _profile(ring: Path, steps: int, seconds: float) -> dict[str, Any]:
    os.environ.setdefault("KINETO_LOG_LEVEL", _SILENT)  # or it writes to the program's stderr
    until_s = time.monotonic() + seconds
    profiler = profile(activities=_activities())
    with _steps_of(ring) as count:
        if not _in_main(profiler.start, seconds):
            return {"error": f"came to no line of Python within {seconds:g} s, so it was not profiled"}
        begun = count()
        while (done := count() - begun) < steps and time.monotonic() < until_s:
            time.sleep(_INTERVAL_S)
    if not _in_main(profiler.stop, _MAIN_S):
        return {"error": f"came to no line of Python within {_MAIN_S:g} s, so its profile is not complete"}
    return {"file": str(_save(profiler, ring)), "steps": done}


def _activities() -> list[ProfilerActivity]:
    """Includes a GPU only if the program uses one: to ask otherwise would begin to use it."""
    is_used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_used else [])]


def _in_main(do: Callable[[], None], timeout_s: float) -> bool:
    is_done = threading.Event()

    def call(_frame: object) -> None:
        try:
            do()
        finally:
            is_done.set()

    return PendingCall(call).has_begun(timeout_s) and is_done.wait(_MAIN_S)


@contextmanager
def _steps_of(ring: Path) -> Iterator[Callable[[], int]]:
    """Counts steps, as long as it is open."""
    if not any(isinstance(each, Optimizer) for each in gc.get_objects()):
        yield _OpsOnOneLine(ring).count
        return
    steps: list[None] = []
    hook = register_optimizer_step_post_hook(lambda *_: steps.append(None))
    try:
        yield lambda: len(steps)
    finally:
        hook.remove()


class _OpsOnOneLine:
    """How often the program has reached the line of the first op again."""

    def __init__(self, ring: Path) -> None:
        self._file = open(ring, "rb", buffering=0)  # noqa: SIM115  (goes with this object)
        self._names_bytes, self._capacity = ring_format.layout_of(self._file.read(ring_format.HEADER.size))
        self._read, self._first, self._seen = self._written(), b"", 0

    def count(self) -> int:
        written = self._written()
        for number in range(max(self._read, written - self._capacity), written):
            self._note(self._record(number))
        self._read = written
        return max(self._seen - 1, 0)

    def _note(self, record: bytes) -> None:
        fields = ring_format.RECORD.unpack(record)
        if fields[5] not in ring_format.EVENTS:
            line = ring_format.NUMBER.pack(fields[9])
            self._first = self._first or line
            self._seen += line == self._first

    def _written(self) -> int:
        return int(ring_format.NUMBER.unpack(os.pread(self._file.fileno(), 8, ring_format.COUNT_AT))[0])

    def _record(self, number: int) -> bytes:
        size = ring_format.RECORD.size
        at = ring_format.NAMES_AT + self._names_bytes + number % self._capacity * size
        return os.pread(self._file.fileno(), size, at)


def _save(profiler: Any, ring: Path) -> Path:
    """Beside the ring, with what its wall clock is ahead of the monotonic clock, which the ring has."""
    number = len(list(ring.parent.glob(f"{ring.stem}-*{SUFFIX}")))
    target = ring.with_name(f"{ring.stem}-{number}{SUFFIX}")
    plain = target.with_suffix(".new")
    profiler.export_chrome_trace(str(plain))
    trace = json.loads(plain.read_text())
    trace["rollcall"] = {"ahead_ns": time.time_ns() - time.monotonic_ns()}
    fresh = target.with_suffix(".part")
    with gzip.open(fresh, "wt", compresslevel=3) as file:
        json.dump(trace, file)
    plain.unlink()
    fresh.rename(target)
    return target
