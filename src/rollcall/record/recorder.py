"""The recorder of this process: which language it is written in is chosen here, and nowhere else."""

import functools
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollcall.errors import say_if_possible
from rollcall.record import hooks, ring_format
from rollcall.record.cpp import library
from rollcall.record.on_request import stacks
from rollcall.record.python_recorder import PythonRecorder
from rollcall.record.ring import Ring
from rollcall.record.sources import SourceCopies
from rollcall.runs import SOURCES, rings_of
from rollcall.torch_version import torch_version

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
    rings = rings_of(folder, attempt)
    ring_class, recorder_class = _classes()
    facts: dict[str, Any] = {"rank": rank, "world_size": world_size, "attempt": attempt}
    size_bytes, names_bytes = ring_format.sizes(_megabytes(os.environ))
    ring = ring_class(
        rings / f"rank-{rank}.ring",
        host=socket.gethostname(),
        size_bytes=size_bytes,
        names_bytes=names_bytes,
        **facts,
    )
    begun = recorder_class(ring, world_size, SourceCopies(rings / SOURCES))
    stacks.answer(rings / f"rank-{rank}.stacks")
    begun.begin()
    _recorder = begun
    if rank == 0:
        _say_what_is_missing()
    return begun


def _say_what_is_missing() -> None:
    """A torch that is newer than this code may have renamed what a hook is put around."""
    found = hooks.places()
    if found.missing:
        say_if_possible(
            f"not everything is recorded on torch {torch_version()}: hooks {found} (`rollcall doctor` tells more)"
        )


def _megabytes(environ: Mapping[str, str]) -> int:
    """Reads the variable, which a user may have set by hand."""
    text = environ.get(ring_format.MB_VARIABLE, "")
    if text.isdecimal() and int(text) in ring_format.MEGABYTES:
        return int(text)
    if text:
        say_if_possible(f"{ring_format.MB_VARIABLE}={text} is ignored: it is a number of megabytes, from 1 on")
    return ring_format.DEFAULT_BYTES >> 20


def current() -> Recorder | None:
    return _recorder
