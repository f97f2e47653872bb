"""Signals that a rank sends, to itself or to others, and the ways out that skip everything: they explain ends that
leave no traceback."""

import os
import signal
from typing import Any

from rollcall.record.hooks.patching import replace
from rollcall.record.hooks.sink import Told


def put_up() -> None:
    replace(os, "kill", _kill)
    replace(os, "abort", _abort)
    replace(os, "_exit", _exit)
    replace(signal, "raise_signal", _raise_signal)


def _kill(original: Any) -> Any:
    def kill(pid: int, number: int) -> None:
        if number:  # 0 only asks whether the process is there
            Told.listener.sends_signal(pid, number)
        original(pid, number)

    return kill


def _abort(original: Any) -> Any:
    def abort() -> None:
        Told.listener.sends_signal(os.getpid(), signal.SIGABRT)
        original()

    return abort


def _raise_signal(original: Any) -> Any:
    def raise_signal(number: int) -> None:
        Told.listener.sends_signal(os.getpid(), number)
        original(number)

    return raise_signal


def _exit(original: Any) -> Any:
    def leave(status: int) -> None:
        Told.listener.leaves(status)
        original(status)

    return leave
