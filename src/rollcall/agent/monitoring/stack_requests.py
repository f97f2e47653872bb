"""Asks ranks for their stacks: through their rings, by a signal where that is safe, else with py-spy.

The signal is answered at once, by code that reads frames without Python's lock. If these change meanwhile, the rank
crashes. So it is sent only to a rank whose main thread runs no Python code: it sleeps, or a thread keeps the lock.
"""

import contextlib
import os
import struct
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from rollcall.agent.monitoring import thread_states
from rollcall.linux import py_spy
from rollcall.record import ring_format
from rollcall.record.on_request import stacks
from rollcall.runs import rank_rings, read_facts, recorded_attempts

_SIGNAL_S = 0.1  # for ranks to answer a signal
_RING_S = 1.5  # for a sampler's thread to notice the request: see ask_in_rings
_INTERVAL_S = 0.02  # between two looks at the files
# A thread that waits for Python's lock asks for it every 5 ms, and code in Python passes it on then.
_WAITS_IN_VAIN = 50


def find_rings(folder: Path, attempt: int, among: Collection[int] | None = None) -> dict[int, Path]:
    """The rings that processes of this host write, by process: ranks, and children that ranks have started; of these
    processes alone, if they are given."""
    found = {}
    for path in rank_rings(folder, attempt):
        with contextlib.suppress(OSError, struct.error), open(path, "rb") as file:
            pid = ring_format.pid_of(file.read(ring_format.HEADER.size))
            if (among is None or pid in among) and _maps(pid, path):
                found[pid] = path
    return found


def ask_all(folder: Path) -> None:
    """Ask the ranks of a run on this host, if it is still running: its explanation needs to know where they are."""
    attempts = recorded_attempts(folder)
    if attempts and read_facts(folder).get("outcome", "running") == "running":
        ask(find_rings(folder, attempts[-1]))


def _maps(pid: int, ring: Path) -> bool:
    """Whether the process has this ring open: it may have ended, or be on another host that shares the disk."""
    try:
        return str(ring.resolve()) in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False


def ask(rings: Mapping[int, Path]) -> None:
    """Have these ranks, by pid, write their stacks beside their rings. Returns when they have, or could have."""
    waits = {pid: _lock_waits(pid) for pid in rings}
    silent = ask_in_rings(rings, _RING_S)
    keep_lock = {pid for pid in silent if _lock_waits(pid) - waits[pid] >= _WAITS_IN_VAIN}
    unknown = _signal(silent, keep_lock | thread_states.asleep(silent))
    for pid, ring in unknown.items():
        _write_from_outside(pid, ring)


def ask_before_end(rings: Mapping[int, Path]) -> None:
    """The same for ranks that will be ended. Those that run are not waited for: the sampler has seen where they are."""
    asleep = thread_states.asleep(rings)
    silent = _signal({pid: rings[pid] for pid in asleep}, asleep)
    for pid, ring in ask_in_rings(silent, _RING_S).items():
        _write_from_outside(pid, ring)


def _lock_waits(pid: int) -> int:
    """How often the sampler's thread has begun to wait: for Python's lock, if it has been asked for something."""
    return thread_states.waits_of(pid, ring_format.SAMPLER_THREAD)


def _signal(rings: Mapping[int, Path], chosen: Collection[int]) -> dict[int, Path]:
    """Send the signal to the chosen ranks that listen for it. Returns the ranks that live and have not answered: the
    program may also have closed all files, and then the handler cannot write."""
    sizes = {pid: stacks_size(ring) for pid, ring in rings.items()}
    listening = [pid for pid in chosen if stacks.is_listening(pid, rings[pid])]
    for pid in listening:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, stacks.ASK)
    time.sleep(_SIGNAL_S if listening else 0)
    silent = {pid: ring for pid, ring in rings.items() if stacks_size(ring) == sizes[pid]}
    return {pid: ring for pid, ring in silent.items() if os.path.exists(f"/proc/{pid}")}


def ask_in_rings(rings: Mapping[int, Path], limit_s: float) -> dict[int, Path]:
    """Ask through the rings, by pid; returns those that nobody has answered. A sampler's thread sleeps for half a
    second at a time until it notices the request."""
    waiting = dict(rings)
    sizes = {pid: stacks_size(ring) for pid, ring in rings.items()}
    for ring in rings.values():
        with contextlib.suppress(OSError):
            stacks.ask_in_ring(ring)
    deadline = time.monotonic() + limit_s
    while waiting and time.monotonic() < deadline:
        time.sleep(_INTERVAL_S)
        waiting = {pid: ring for pid, ring in waiting.items() if stacks_size(ring) == sizes[pid]}
    return waiting


def stacks_size(ring: Path) -> int:
    """How many bytes of stacks are written beside a ring."""
    try:
        return ring.with_suffix(".stacks").stat().st_size
    except OSError:
        return 0


def _write_from_outside(pid: int, ring: Path) -> None:
    frames = py_spy.main_thread(pid)
    why_not = _NO_ANSWER if stacks.is_listening(pid, ring) else _RESET
    text = stacks.as_text("Current thread", frames) if frames else f"{ring_format.NO_STACK}{why_not}; {_py_spy()}\n"
    with contextlib.suppress(OSError), open(ring.with_suffix(".stacks"), "a") as file:
        file.write(text)


_NO_ANSWER = "no thread of the rank has answered in time, and a signal to a rank that runs could end it"
_RESET = "the program has reset the signal handler that writes it, and no thread could, since one holds Python's lock"


def _py_spy() -> str:
    return "py-spy cannot read it either" if py_spy.command() else "py-spy, if installed, would read it"
