"""The recorder of this process: which language it is written in is chosen here, and nowhere else."""

import functools
import socket
from pathlib import Path
from typing import Any

from rollcall.record import hooks, stacks
from rollcall.record.cpp import library
from rollcall.record.python_recorder import PythonRecorder
from rollcall.record.ring import Ring
from rollcall.record.sources import SourceKeeper
from rollcall.runs import SOURCES

Recorder = PythonRecorder  # the C++ recorder is a subclass
_recorder: Recorder | None = None


@functools.cache
def _classes() -> tuple[type[Ring], type[Recorder]]:
    """C++ where it is compiled (`python -m rollcall.native`) and not switched off (ROLLCALL_NATIVE=0)."""
    if library is None:
        return Ring, PythonRecorder
    from rollcall.record.cpp.recorder import CppRecorder  # here: it cannot be imported where it is not compiled
    from rollcall.record.cpp.ring import CppRing

    return CppRing, CppRecorder


def prepare() -> None:
    """Do what is done once for all ranks, before they are forked."""
    hooks.install()
    _classes()


def begin(folder: Path, rank: int, world_size: int, attempt: int) -> Recorder:
    """Record this rank, in the folder of its run."""
    global _recorder
    rings = folder / "rings" / f"attempt-{attempt}"
    ring_class, recorder_class = _classes()
    facts: dict[str, Any] = {"rank": rank, "world_size": world_size, "attempt": attempt}
    ring = ring_class(rings / f"rank-{rank}.ring", host=socket.gethostname(), **facts)
    _recorder = recorder_class(ring, world_size, SourceKeeper(rings / SOURCES))
    stacks.answer(rings / f"rank-{rank}.stacks")
    _recorder.begin()
    return _recorder


def current() -> Recorder | None:
    return _recorder
