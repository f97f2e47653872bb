"""The progress of an epoch on stderr."""

import io
import itertools
import sys
from types import SimpleNamespace

import pytest

from rollcall.train.reporting import progress_bar
from rollcall.train.reporting.progress_bar import ProgressBar

HALF = "epoch 1/3 ━━━━━━━━━━━━┄┄┄┄┄┄┄┄┄┄┄┄ 1,000/2,000 loss 0.5000"


class Stderr(io.StringIO):
    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


def show_half(monkeypatch: pytest.MonkeyPatch, *, is_terminal: bool, under_rollcall: bool) -> str:
    """What is written in two calls, 10 seconds apart, and by clear."""
    seconds = itertools.count(step=10)
    monkeypatch.setattr(progress_bar, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    monkeypatch.setattr(sys, "stderr", stderr := Stderr(is_terminal))
    if under_rollcall:
        monkeypatch.setenv("ROLLCALL_RUN", "folder")
    else:
        monkeypatch.delenv("ROLLCALL_RUN", raising=False)
    bar = ProgressBar(enabled=True)
    for _ in range(2):
        bar.show(0, 3, 1000, 2000, 0.5)
    bar.clear()
    bar.clear()
    return stderr.getvalue()


def test_a_terminal_shows_one_line_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is erased once, before something else is printed."""
    erase = "\r\x1b[K"
    shown = show_half(monkeypatch, is_terminal=True, under_rollcall=False)
    assert shown == f"{erase}{HALF}{erase}{HALF}{erase}"


def test_rollcall_shows_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has to be erased."""
    assert show_half(monkeypatch, is_terminal=False, under_rollcall=True) == f"{HALF}\n{HALF}\n"


def test_other_pipes_get_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log file is not filled with progress."""
    assert show_half(monkeypatch, is_terminal=False, under_rollcall=False) == ""
