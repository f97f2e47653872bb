"""Lists and ends all descendants of this process."""

import contextlib
import os
import signal
import textwrap
import time
from collections.abc import Collection, Mapping

import psutil

_MOST_COMMANDS, _MOST_LETTERS = 5, 100


def descendants(spared: Collection[int] = ()) -> list[psutil.Process]:
    """All descendants of this process except those spared; the children of the spared ones are included."""
    return [p for p in psutil.Process().children(recursive=True) if p.pid not in spared]


def wait_for_all(timeout_s: float, spared: Collection[int] = ()) -> None:
    """Wait for descendants that end by themselves: multiprocessing's helpers outlive their user by a moment."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and any(map(_is_alive, descendants(spared))):
        time.sleep(0.01)


def end_all(grace_s: float, spared: Collection[int] = ()) -> dict[int, str]:
    """End all descendants: SIGTERM, then SIGKILL after the grace. Returns the commands of those it ended, by pid."""
    ended: dict[int, str] = {}
    give_up = time.monotonic() + grace_s + 5
    kill_after = time.monotonic() + grace_s
    while time.monotonic() < give_up:
        alive = [p for p in descendants(spared) if _is_alive(p)]
        if not alive:
            break
        hard = time.monotonic() >= kill_after
        for process in alive:
            if hard or process.pid not in ended:
                ended.setdefault(process.pid, _describe(process))
                _send(process, signal.SIGKILL if hard else signal.SIGTERM)
        time.sleep(0.01)
    _reap()
    return ended


def in_words(processes: Mapping[int, str]) -> str:
    """One line, however many there are: equal commands together, the first few of them, long ones cut."""
    pids: dict[str, list[str]] = {}
    for pid, command in processes.items():
        pids.setdefault(textwrap.shorten(command, _MOST_LETTERS, placeholder=" …"), []).append(str(pid))
    parts = [f"{command} (pid {', '.join(its)})" for command, its in pids.items()]
    more = [f"{len(parts) - _MOST_COMMANDS} other commands"] if len(parts) > _MOST_COMMANDS else []
    return ", ".join(parts[:_MOST_COMMANDS] + more)


def _is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def _describe(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline()) or str(process.name())
    return "a process"


def _send(process: psutil.Process, number: signal.Signals) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)
        if number == signal.SIGTERM:  # a stopped process would never see it
            process.send_signal(signal.SIGCONT)


def _reap() -> None:
    """Collect the exit status of adopted orphans, so that they do not stay as zombies."""
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess, ChildProcessError):
            if child.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(child.pid, os.WNOHANG)
