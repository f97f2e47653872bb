"""Reads the stacks of ranks so that their program does not notice: with py-spy, else through their rings.

Unlike stack_requests.py it sends no signal: a signal may interrupt a system call of a library that does not expect it.
py-spy reads the rank's memory, and finds frames of C++, too. Without py-spy, the sampler's thread in the rank writes
the stack. This also works while the main thread is in C++, unless the main thread holds Python's lock (GIL).
"""

import contextlib
import linecache
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rollcall.agent.monitoring.stack_requests import ask_in_rings, stacks_size
from rollcall.linux import py_spy
from rollcall.protocol.rank_stack import RankStack, StackFrame
from rollcall.record import ring_format, sites
from rollcall.record.on_request import stacks
from rollcall.worker import main as worker_main

_RING_S = 3.0  # for a sampler's thread to write the stack
_AT_ONCE = 4  # py-spy reads the symbols of all libraries, which takes a core and some memory
_ENTRY_POINT = worker_main.__file__  # runs the program: frames outside of it are rollcall's
_HOOKS = str(Path(ring_format.__file__).parent) + "/"
_UNNAMED = "0x"  # a function without a symbol: its address says nothing, and differs between ranks
_NOT_RECORDED = "it is not recorded, and py-spy is not installed, which would read its stack"
_LOCKED = "it did not answer: something in it holds Python's lock"


def collect(pids: Mapping[int, int], rings: Mapping[int, Path]) -> dict[int, RankStack]:
    """Where each of these ranks is. `pids` is by rank, `rings` by pid."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        read = dict(zip(pids, pool.map(_read_with_py_spy, pids.values()), strict=True))
    unread = {pid: ring for pid, ring in rings.items() if not read[_rank_of(pids, pid)]}
    written = _ask_in_rings(unread)
    return {rank: _stack(pid, read[rank] or written.get(pid, []), pid in rings) for rank, pid in pids.items()}


def _rank_of(pids: Mapping[int, int], pid: int) -> int:
    return next(rank for rank, each in pids.items() if each == pid)


def _read_with_py_spy(pid: int) -> py_spy.Frames:
    return py_spy.main_thread(pid, native=True) or py_spy.main_thread(pid)


def _ask_in_rings(rings: Mapping[int, Path]) -> dict[int, py_spy.Frames]:
    """By pid, of those that answer."""
    sizes = {pid: stacks_size(ring) for pid, ring in rings.items()}
    silent = ask_in_rings(rings, _RING_S)
    return {pid: _written_since(rings[pid], sizes[pid]) for pid in rings if pid not in silent}


def _written_since(ring: Path, size: int) -> py_spy.Frames:
    with contextlib.suppress(OSError), open(ring.with_suffix(".stacks"), errors="replace") as file:
        file.seek(size)
        return stacks.parse_main_thread(file.read())
    return []


def _stack(pid: int, frames: py_spy.Frames, is_recorded: bool) -> RankStack:
    host = socket.gethostname()
    if frames:
        return RankStack(host, pid, of_the_program(frames))
    return RankStack(host, pid, why_not=_why_not(is_recorded))


def _why_not(is_recorded: bool) -> str:
    if py_spy.command() is not None:
        return f"py-spy cannot read its stack, and {_LOCKED if is_recorded else 'it is not recorded'}"
    if not is_recorded:
        return _NOT_RECORDED
    return f"{_LOCKED}; py-spy, if installed, would read its stack; `rollcall explain` asks for it by a signal"


def of_the_program(frames: py_spy.Frames) -> list[StackFrame]:
    """Leaves out frames of rollcall below and above the program's, and adds the text of the program's own lines."""
    end = next((at for at, (file, _, _) in enumerate(frames) if file == _ENTRY_POINT), len(frames))
    kept = [each for each in frames[:end] if not each[0].startswith(_HOOKS) and not each[2].startswith(_UNNAMED)]
    return [StackFrame(file, line, function, _text(file, line)) for file, line, function in kept]


def _text(file: str, line: int) -> str:
    if line == 0 or not file.endswith(".py") or not sites.is_users_file(file):
        return ""
    linecache.checkcache(file)
    return linecache.getline(file, line).strip()
