"""The merged console: prints whole lines with the ranks that printed them, and equal lines once.

Bytes of ranks come in; lines for the terminal go out, in the order in which they were written, as far as the pipes tell
it. Three things happen to them on the way:
- equal lines of several ranks within a short time become one: `0-3 │ epoch 1`;
- the many states of a progress bar, separated by carriage returns, become at most one line a second;
- a traceback is held back for a moment: if its rank then ends, the launcher's report shows it once.
"""

import math
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TextIO

from rollcall.linux.standard_streams import can_show
from rollcall.protocol.plan import Show
from rollcall.protocol.rank_ranges import list_of

_WINDOW_S = 0.05  # equal lines this close are shown as one
_PROGRESS_S = 1.0
_TRACEBACK_S = 1.0  # a traceback whose rank lives on is shown after this
_MOST_LINE_BYTES = 1 << 20  # a line longer than this is shown in parts
_MOST_PENDING = 2000
_MOST_TRACEBACK_LINES = 2000
_TRACEBACK = "Traceback (most recent call last):"
_COLOURS = (36, 33, 32, 35, 34, 31, 96, 93, 92, 95, 94, 91)
# What a terminal would obey instead of show, but for colours: a rank must not move the cursor of all.
_CONTROL = re.compile(
    r"\x1b\[[0-9;?]*[A-LN-Za-ln-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0b\x0c\x0e-\x1a\x7f]"
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class _Line:
    """A line that waits for equals."""

    stream: int
    text: str
    ranks: list[int]  # none: the line has moved further down
    since: float
    number: int


@dataclass
class _Stream:
    """One stream of one rank: the bytes without a line end so far, and a traceback that is being held."""

    partial: bytes = b""
    progress_shown: float = -math.inf
    held: list[str] = field(default_factory=list)
    held_since: float = 0.0
    held_ns: int = 0


@dataclass(frozen=True)
class Traceback:
    """The last traceback that a rank printed before it ended, and when its first line came."""

    lines: tuple[str, ...]
    since_ns: int


class LostOutputError(Exception):
    """A stream cannot be written any more, though somebody may want to read it: `stream`, and `strerror` says why."""

    def __init__(self, stream: TextIO, error: OSError) -> None:
        super().__init__(str(error))
        self.stream, self.strerror = stream, error.strerror


class Console:
    """Feeds on output, writes to terminals or pipes: `outs` by stream. `tick` must be called often."""

    def __init__(
        self,
        outs: Mapping[int, TextIO],
        world_size: int,
        shown: Callable[[int, int], bool],
        clock: Callable[[], float] = time.monotonic,
        window_s: float = _WINDOW_S,
    ) -> None:
        self._outs, self._clock, self._shown, self._window_s = outs, clock, shown, window_s
        self._colour = {stream: out.isatty() for stream, out in outs.items()}
        self._bar = {stream: "│" if can_show(out, "│") else "|" for stream, out in outs.items()}
        self._world_size = world_size
        self._width = len(f"0-{world_size - 1}") if world_size > 1 else 1
        self._streams: dict[tuple[int, int], _Stream] = {}
        self._pending: deque[_Line] = deque()
        self._joinable: dict[tuple[int, str], _Line] = {}  # the newest pending line of each text
        self._last_of: dict[int, int] = {}  # per rank, the number of its newest pending line
        self._count = 0

    def feed(self, rank: int, stream: int, data: bytes) -> None:
        state = self._streams.setdefault((rank, stream), _Stream())
        *lines, state.partial = (state.partial + data).split(b"\n")
        for line in lines:
            self._take(rank, stream, state, line)
        while len(state.partial) > _MOST_LINE_BYTES:
            self._take(rank, stream, state, state.partial[:_MOST_LINE_BYTES])
            state.partial = state.partial[_MOST_LINE_BYTES:]
        if b"\r" in state.partial:
            self._progress(rank, stream, state)

    def feed_line_end(self, rank: int) -> None:
        """Show what the rank has written without a line end as a line."""
        for stream in (1, 2):
            state = self._streams.get((rank, stream))
            if state is not None and state.partial:
                self.feed(rank, stream, b"\n")

    def tick(self) -> None:
        """Show what has waited long enough."""
        now = self._clock()
        for (rank, stream), state in self._streams.items():
            if state.held and now - state.held_since > _TRACEBACK_S:
                self._release(rank, stream, state)
        while self._pending and self._ripe(self._pending[0], now):
            self._show(self._pending.popleft())
        self._flush_outs()

    def ended(self, rank: int, failed: bool) -> Traceback | None:
        """A rank is gone: show the rest of what it said, and return the traceback that it failed with."""
        traceback = None
        for stream in (1, 2):
            state = self._streams.pop((rank, stream), None)
            if state is None:
                continue
            if state.partial:
                self._take(rank, stream, state, state.partial)
            if not failed:
                self._release(rank, stream, state)
            elif state.held:
                traceback = Traceback(tuple(state.held), state.held_ns)
        return traceback

    def flush(self) -> None:
        for (rank, stream), state in self._streams.items():
            self._release(rank, stream, state)
        while self._pending:
            self._show(self._pending.popleft())
        self._flush_outs()

    def _take(self, rank: int, stream: int, state: _Stream, raw: bytes) -> None:
        # torch puts its own mark before each line of a traceback; ours says it already
        text = raw.decode("utf-8", "replace").rstrip("\r").removeprefix(f"[rank{rank}]: ")
        if "\r" in text:
            text = text.rpartition("\r")[2]
        if state.held:
            if self._belongs_to_traceback(state.held, text):
                state.held.append(text)
                return
            self._release(rank, stream, state)
        if text == _TRACEBACK:
            state.held, state.held_since, state.held_ns = [text], self._clock(), time.time_ns()
        else:
            self._line(rank, stream, text)

    def _belongs_to_traceback(self, held: list[str], text: str) -> bool:
        if len(held) >= _MOST_TRACEBACK_LINES:
            return False
        complete = not held[-1].startswith(" ") and len(held) > 1 and held[-1] != ""
        chained = text == "" or text.startswith(("During handling", "The above exception", _TRACEBACK, " "))
        return not complete or chained or held[-1].startswith(("During handling", "The above exception"))

    def _release(self, rank: int, stream: int, state: _Stream) -> None:
        held, state.held = state.held, []
        for text in held:
            self._line(rank, stream, text)

    def _progress(self, rank: int, stream: int, state: _Stream) -> None:
        """Keep only the newest state of a bar, and show it now and then."""
        before, _, state.partial = state.partial.rpartition(b"\r")
        newest = state.partial or before.rpartition(b"\r")[2]
        state.partial = b"\r" + state.partial  # what follows overwrites this
        now = self._clock()
        if newest.strip() and now - state.progress_shown >= _PROGRESS_S:
            state.progress_shown = now
            self._line(rank, stream, newest.decode("utf-8", "replace"))

    def _line(self, rank: int, stream: int, text: str) -> None:
        if not self._shown(rank, stream):
            return
        text = _CONTROL.sub("", text)
        if not self._colour[stream]:
            text = _COLOUR.sub("", text)
        same = self._joinable.get((stream, text))
        if same is None or rank in same.ranks:
            self._append(_Line(stream, text, [rank], self._clock(), 0))
        elif self._last_of.get(rank, -1) < same.number:
            same.ranks.append(rank)
            self._last_of[rank] = same.number
        elif all(self._last_of[r] == same.number for r in same.ranks):
            # This rank printed another line in between: move the common line behind that one.
            self._append(_Line(stream, text, [*same.ranks, rank], same.since, 0))
            same.ranks.clear()
        else:
            self._append(_Line(stream, text, [rank], self._clock(), 0))

    def _append(self, line: _Line) -> None:
        self._count += 1
        line.number = self._count
        self._pending.append(line)
        self._joinable[line.stream, line.text] = line
        for rank in line.ranks:
            self._last_of[rank] = line.number
        if len(self._pending) > _MOST_PENDING:
            self._show(self._pending.popleft())

    def _ripe(self, line: _Line, now: float) -> bool:
        return not line.ranks or now - line.since >= self._window_s or len(line.ranks) == self._world_size

    def _show(self, line: _Line) -> None:
        if self._joinable.get((line.stream, line.text)) is line:
            del self._joinable[line.stream, line.text]
        if not line.ranks:  # it was moved
            return
        label = list_of(line.ranks).rjust(self._width)
        out = self._outs[line.stream]
        bar = self._bar[line.stream]
        with _writing_to(out):
            if self._colour[line.stream]:
                colour = _COLOURS[line.ranks[0] % len(_COLOURS)] if len(line.ranks) == 1 else 1
                out.write(f"\x1b[{colour}m{label} {bar}\x1b[0m {line.text}\x1b[0m\n")
            else:
                out.write(f"{label} {bar} {line.text}\n")

    def _flush_outs(self) -> None:
        for out in self._outs.values():
            with _writing_to(out):
                out.flush()


@contextmanager
def _writing_to(out: TextIO) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:  # nobody reads it
        raise
    except OSError as error:
        raise LostOutputError(out, error) from error


def visibility(show: Show, local_rank_of: Callable[[int], int]) -> Callable[[int, int], bool]:
    """Whether a rank's stream is shown: --show, --local-ranks-filter, --redirects."""

    def shown(rank: int, stream: int) -> bool:
        local = local_rank_of(rank)
        if show.ranks is not None and rank not in show.ranks:
            return False
        if show.local_ranks is not None and local not in show.local_ranks:
            return False
        names = {(-1, stream), (local, stream)}
        return not names & set(show.redirected) or bool(names & set(show.teed))

    return shown


def indent(lines: Iterable[str]) -> str:
    return "\n".join(f"  {line}" for line in lines)
