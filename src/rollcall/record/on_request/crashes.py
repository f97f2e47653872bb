"""The line of a crash in C++ is written beside the ring. The program does not see that faulthandler is enabled for
that: one that asks `is_enabled()` first would not enable its own, and the stack of a crash would be missing on stderr.
"""

import faulthandler
import functools
from typing import Any

_enable, _disable, _is_enabled = faulthandler.enable, faulthandler.disable, faulthandler.is_enabled


def write_to(fd: int) -> None:
    """Writes crashes there until the program itself decides. It may have done so already, as by PYTHONFAULTHANDLER."""
    if not _is_enabled():
        _enable(file=fd, all_threads=False)
        faulthandler.enable, faulthandler.disable, faulthandler.is_enabled = _enabled, _disabled, _is_programs


def _leave() -> None:
    faulthandler.enable, faulthandler.disable, faulthandler.is_enabled = _enable, _disable, _is_enabled


@functools.wraps(_enable)
def _enabled(*args: Any, **kwargs: Any) -> None:
    _enable(*args, **kwargs)
    _leave()


@functools.wraps(_disable)
def _disabled() -> Any:
    _disable()
    _leave()
    return False  # as where nothing was enabled


@functools.wraps(_is_enabled)
def _is_programs() -> bool:
    return False
