"""How far an experiment is: its ranks count their trials, and the process with the progress bar reads the count.

An experiment says `for _ in track(range(trials))`; such loops may be nested. Rank 0 writes the share that is done into
eight bytes of a file: a few microseconds, so that counting does not slow a trial down.
"""

import os
import struct
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

_VARIABLE = "ROLLCALL_LAB_PROGRESS"
_SHARE = struct.Struct("d")
_READ_EVERY_S = 0.1
_Step = TypeVar("_Step")
_loops: list[tuple[int, int]] = []  # steps done and all steps, from the outermost loop to the innermost
_files: dict[str, int] = {}  # those that this process writes, by path


def track(steps: Collection[_Step]) -> Iterator[_Step]:
    """The steps, counted as they are done."""
    depth = len(_loops)
    try:
        for done, step in enumerate(steps):
            _loops[depth:] = [(done, len(steps))]
            _write()
            yield step
        _loops[depth:] = [(len(steps), len(steps))]
        _write()
    finally:
        del _loops[depth:]


def share() -> float:
    """The share of the outermost loop that is done."""
    found = 0.0
    for done, steps in reversed(_loops):
        found = (done + found) / steps if steps else 1.0
    return found


def stop() -> None:
    """Stop counting: what follows is not part of the measurement."""
    os.environ.pop(_VARIABLE, None)


def _write() -> None:
    path = os.environ.get(_VARIABLE)
    if path is None or os.environ.get("RANK") != "0":
        return
    if path not in _files:
        _files[path] = os.open(path, os.O_WRONLY)
    os.pwrite(_files[path], _SHARE.pack(share()), 0)


@contextmanager
def follow(path: Path, report: Callable[[float], None]) -> Iterator[None]:
    """Report the share that is done, from a thread, until the block ends."""
    path.write_bytes(bytes(_SHARE.size))
    os.environ[_VARIABLE] = str(path)
    is_over = threading.Event()

    def read() -> None:
        while not is_over.wait(_READ_EVERY_S):
            report(_SHARE.unpack(path.read_bytes())[0])

    reader = threading.Thread(target=read, name="lab-progress", daemon=True)
    reader.start()
    try:
        yield
    finally:
        is_over.set()
        reader.join()
        stop()
        path.unlink(missing_ok=True)
