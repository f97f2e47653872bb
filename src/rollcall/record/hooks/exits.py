"""Signals that a rank sends, and exits that skip Python's own: they explain ends that leave no traceback."""

import os
import signal
from typing import Any

from rollcall.record.hooks import sink
from rollcall.record.hooks.patching import Hook, install


def install_all() -> None:
    install(os, "kill", Hook("os.kill", _before_kill))
    install(os, "abort", Hook("os.abort", _before_abort))
    install(os, "_exit", Hook("os._exit", _before_exit))
    install(signal, "raise_signal", Hook("signal.raise_signal", _before_raise_signal))


def _before_kill(args: tuple[Any, ...], _: dict[str, Any]) -> None:
    if _are_numbers(args, 2) and args[1]:  # 0 only asks whether the process exists
        sink.current.signal_sent(*args)


def _before_abort(*_: Any) -> None:
    sink.current.signal_sent(os.getpid(), signal.SIGABRT)


def _before_raise_signal(args: tuple[Any, ...], _: dict[str, Any]) -> None:
    if _are_numbers(args, 1):
        sink.current.signal_sent(os.getpid(), args[0])


def _before_exit(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    given = (*args, *kwargs.values())
    if _are_numbers(given, 1):
        sink.current.exiting(given[0])


def _are_numbers(given: tuple[Any, ...], count: int) -> bool:
    """Python refuses other arguments."""
    return len(given) == count and all(isinstance(each, int) for each in given)
