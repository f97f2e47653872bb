"""The merged console, with a clock that the test moves."""

import errno
import io

import pytest

from rollcall.coordinator.console import Console, LostOutputError, visibility
from rollcall.protocol.plan import Show

OUT, ERR = 1, 2


class Screen:
    """A console of four ranks, and what it wrote."""

    def __init__(self, world_size: int = 4, show: Show | None = None) -> None:
        self.now = 0.0
        self.out, self.err = io.StringIO(), io.StringIO()
        shown = visibility(show or Show(), lambda rank: rank % 2)
        self.console = Console({OUT: self.out, ERR: self.err}, world_size, shown, clock=lambda: self.now)

    def after(self, seconds: float) -> "Screen":
        self.now += seconds
        self.console.tick()
        return self

    @property
    def lines(self) -> list[str]:
        return self.out.getvalue().splitlines()


def test_equal_lines_become_one() -> None:
    """What all ranks say is shown at once, with all their numbers."""
    screen = Screen()
    for rank in (2, 0, 3, 1):
        screen.console.feed(rank, OUT, b"epoch 1\n")
    assert screen.after(0).lines == ["0-3 │ epoch 1"]


def test_a_line_of_few_ranks_waits_for_the_window_only() -> None:
    """After the window a line is shown with those who said it."""
    screen = Screen()
    screen.console.feed(0, OUT, b"hello\n")
    screen.console.feed(2, OUT, b"hello\n")
    assert screen.after(0.01).lines == []
    assert screen.after(0.05).lines == ["0,2 │ hello"]


def test_each_rank_keeps_its_own_order() -> None:
    """Folding never shows a rank's second line before its first."""
    screen = Screen(2)
    screen.console.feed(0, OUT, b"a\nb\n")
    screen.console.feed(1, OUT, b"b\na\n")
    lines = screen.after(1).lines
    for rank, order in ((0, "ab"), (1, "ba")):
        said = [line[-1] for line in lines if str(rank) in line.split("│")[0] or "0-1" in line]
        assert "".join(said) == order


def test_a_common_line_after_different_ones_is_folded() -> None:
    """Each rank greets in its own words, then all say the same: that is one line."""
    screen = Screen()
    for rank in range(4):
        screen.console.feed(rank, OUT, f"I am {rank}\nready\n".encode())
    assert screen.after(1).lines == [*(f"  {r} │ I am {r}" for r in range(4)), "0-3 │ ready"]


def test_lines_stay_whole() -> None:
    """A line that comes in pieces is shown when it is complete, or when its rank is gone."""
    screen = Screen()
    screen.console.feed(1, OUT, "grü".encode()[:3])
    screen.console.feed(0, OUT, b"other\n")
    screen.console.feed(1, OUT, "grün".encode()[3:] + b" and more")
    assert screen.after(1).lines == ["  0 │ other"]
    screen.console.ended(1, failed=False)
    assert screen.after(1).lines[-1] == "  1 │ grün and more"


def test_a_line_without_end_is_shown_in_parts() -> None:
    """Memory is bounded: after a megabyte a part is shown."""
    screen = Screen()
    for _ in range(40):
        screen.console.feed(0, OUT, b"x" * 65536)
    assert len(screen.after(1).lines) == 2


def test_a_progress_bar_shows_now_and_then() -> None:
    """Of many states within a second one is shown, and the last one at the end."""
    screen = Screen(1)
    for percent in range(50):
        screen.console.feed(0, ERR, f"\r{percent}%".encode())
        screen.now += 0.01
    screen.console.feed(0, ERR, b"\r100%\n")
    screen.after(1)
    assert screen.err.getvalue().splitlines() == ["0 │ 0%", "0 │ 100%"]


def test_streams_go_where_they_came_from() -> None:
    """stderr of a rank goes to stderr; equal lines on different streams are not folded."""
    screen = Screen(2)
    screen.console.feed(0, OUT, b"same\n")
    screen.console.feed(1, ERR, b"same\n")
    screen.after(1)
    assert screen.out.getvalue() == "  0 │ same\n"
    assert screen.err.getvalue() == "  1 │ same\n"


def test_a_terminal_is_not_moved_by_a_rank() -> None:
    """Cursor movements, titles and bells of a rank are dropped, and its colours too where there is no terminal."""
    screen = Screen(1)
    screen.console.feed(0, OUT, b"\x1b[2J\x1b[5Aa\x1b]0;title\x07b\x07\x1b[31mc\x1b[0m\n")
    assert screen.after(1).lines == ["0 │ abc"]


TRACEBACK = b"""Traceback (most recent call last):
  File "x.py", line 1, in <module>
    f()
KeyError: 'a'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "x.py", line 3, in <module>
    g()
ValueError: b
"""


def test_the_traceback_of_a_failed_rank_is_kept_for_the_report() -> None:
    """It is not shown among the lines; the chained ones belong to it."""
    screen = Screen()
    screen.console.feed(0, ERR, b"before\n" + TRACEBACK)
    screen.after(0.2)
    traceback = screen.console.ended(0, failed=True)
    assert screen.err.getvalue() == "  0 │ before\n"
    assert traceback is not None
    assert traceback.lines[0] == "Traceback (most recent call last):"
    assert traceback.lines[-1] == "ValueError: b"


def test_torchs_own_rank_prefix_is_dropped() -> None:
    """torch writes [rank2]: before each line of a traceback; we say it already."""
    screen = Screen()
    screen.console.feed(2, ERR, b"[rank2]: Traceback (most recent call last):\n[rank2]: ValueError: b\n")
    traceback = screen.console.ended(2, failed=True)
    assert traceback is not None
    assert traceback.lines == ("Traceback (most recent call last):", "ValueError: b")


def test_a_traceback_of_a_rank_that_goes_on_is_shown() -> None:
    """After a second, or when other lines follow, it is a message like any other."""
    screen = Screen()
    screen.console.feed(0, ERR, TRACEBACK)
    screen.console.feed(1, ERR, TRACEBACK + b"going on\n")
    screen.after(2).after(1)
    assert screen.err.getvalue().count("ValueError: b") == 2
    assert "going on" in screen.err.getvalue()


@pytest.mark.parametrize(
    ("show", "seen"),
    [
        (Show(), {(r, s) for r in range(4) for s in (1, 2)}),
        (Show(ranks=(0, 3)), {(0, 1), (0, 2), (3, 1), (3, 2)}),
        (Show(local_ranks=(1,)), {(1, 1), (1, 2), (3, 1), (3, 2)}),
        (Show(redirected=((-1, 2),)), {(r, 1) for r in range(4)}),
        (Show(redirected=((-1, 2), (-1, 1)), teed=((1, 2),)), {(1, 2), (3, 2)}),
    ],
)
def test_what_is_shown(show: Show, seen: set[tuple[int, int]]) -> None:
    """--show, --local-ranks-filter, --redirects and --tee choose ranks and streams."""
    shown = visibility(show, lambda rank: rank % 2)
    assert {(r, s) for r in range(4) for s in (1, 2) if shown(r, s)} == seen


class Unwritable(io.StringIO):
    def __init__(self, error: OSError) -> None:
        super().__init__()
        self._error = error

    def write(self, _: str) -> int:
        raise self._error


def test_a_stream_that_cannot_be_written_is_named() -> None:
    """A full disk is told from a reader that is gone, which ends the run."""
    full, unread = OSError(errno.ENOSPC, "No space left on device"), BrokenPipeError(errno.EPIPE, "Broken pipe")
    for error, expected in ((full, LostOutputError), (unread, BrokenPipeError)):
        out = Unwritable(error)
        console = Console({OUT: out, ERR: io.StringIO()}, 1, lambda *_: True)
        console.feed(0, OUT, b"epoch 0\n")
        with pytest.raises(expected) as raised:
            console.flush()
        assert getattr(raised.value, "stream", out) is out


def test_a_terminal_without_the_bar_shows_another() -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="replace")
    console = Console({OUT: out, ERR: io.StringIO()}, 2, lambda *_: True)
    console.feed(1, OUT, b"epoch 0\n")
    console.flush()
    out.seek(0)
    assert out.read() == "  1 | epoch 0\n"
