"""Ranks that are stopped in a debugger. The launcher's terminal shows the prompt of one rank at a time. When this rank
continues, it shows the next one; the others wait. A rank of `rollcall attach` has a terminal of its own.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollcall.coordinator.agents import Agent
from rollcall.coordinator.debugging.terminals import FileTerminal, OwnTerminal, Terminal
from rollcall.protocol.messages import DEBUGGER, ToRank
from rollcall.protocol.rank_ranges import ranks_in_words

_STEP_S = 1.0  # if a line takes longer, its rank may wait for ranks that are stopped in a debugger


@dataclass
class _Debugged:
    """One rank whose debugger has connected."""

    rank: int
    agent: Agent
    partial: bytes = b""
    text: str = ""  # not shown yet
    prompt: str | None = None  # it waits for a line
    is_asked: bool = False  # its terminal was asked for that line
    is_stopped: bool = False
    at: str = ""
    sent_s: float = 0.0  # when it got its last line


class Debuggers:
    def __init__(
        self,
        say: Callable[[str], None],
        now: Callable[[], float] = time.monotonic,
        own: Callable[[], Terminal] = OwnTerminal,
    ) -> None:
        """`say` tells the user something, `now` is a clock in seconds, `own` makes the launcher's terminal."""
        self._say, self._now, self._make_own = say, now, own
        self._ranks: dict[int, _Debugged] = {}
        self._attached: dict[int, Terminal] = {}
        self._own: Terminal | None = None
        self._current: int | None = None  # whose terminal the launcher's is

    @property
    def is_active(self) -> bool:
        """Whether a rank stands in a debugger, or is about to."""
        return bool(self._attached) or any(each.is_stopped for each in self._ranks.values())

    def attach(self, rank: int, question: Path) -> str:
        """Somebody wants to debug this rank; says why not."""
        if rank in self._attached or (rank in self._ranks and self._ranks[rank].is_stopped):
            return f"rank {rank} has a debugger already: quit it first"
        self._attached[rank] = FileTerminal(question)
        return ""

    def note_refused(self, rank: int) -> None:
        """The rank cannot be debugged; `rollcall attach` was told why."""
        self._attached.pop(rank, None)

    def note_opened(self, agent: Agent, rank: int) -> None:
        self._ranks[rank] = _Debugged(rank, agent)

    def note_closed(self, rank: int) -> None:
        self._ranks.pop(rank, None)
        self._detach(rank)
        if self._current == rank:
            self._current = None

    def note_data(self, rank: int, data: bytes) -> None:
        debugged = self._ranks.get(rank)
        if debugged is not None:
            *lines, debugged.partial = (debugged.partial + data).split(b"\n")
            for line in lines:
                self._take(debugged, json.loads(line))

    def tick(self) -> None:
        for rank, terminal in list(self._attached.items()):
            self._serve(rank, terminal, terminal.lines())
        typed = self._own.lines() if self._own is not None else []
        self._choose()
        if self._current is not None:
            self._serve(self._current, self._own_terminal(), typed)

    def close(self) -> None:
        for rank in list(self._attached):
            self._detach(rank)
        if self._own is not None:
            self._own.close()

    def _take(self, debugged: _Debugged, message: dict[str, Any]) -> None:
        match message["kind"]:
            case "text":
                debugged.text += message["text"]
            case "ask":
                debugged.prompt, debugged.is_asked = message["prompt"], False
            case "stopped":
                debugged.is_stopped, debugged.at = True, message["at"]
            case "running":
                debugged.is_stopped, debugged.prompt = False, None
                if not message["stays"]:
                    self._detach(debugged.rank)

    def _detach(self, rank: int) -> None:
        terminal = self._attached.pop(rank, None)
        if terminal is not None:
            terminal.close()

    def _serve(self, rank: int, terminal: Terminal, typed: list[str | None]) -> None:
        """Show what the rank has said, and hand it what was typed."""
        debugged = self._ranks.get(rank)
        if debugged is None:
            return
        for number, line in enumerate(typed, 1):
            if rank == self._current and line is not None and self._moves_on(line):
                self._serve(self._current, terminal, typed[number:])
                return
            if debugged.prompt is not None:
                self._send(debugged, line)
        if debugged.text:
            terminal.show(debugged.text)
            debugged.text = ""
        if debugged.prompt is not None and not debugged.is_asked:
            terminal.ask(debugged.prompt)
            debugged.is_asked = True

    def _send(self, debugged: _Debugged, line: str | None) -> None:
        debugged.prompt, debugged.sent_s = None, self._now()
        debugged.agent.send(ToRank(debugged.rank, DEBUGGER, json.dumps({"line": line or ""}).encode() + b"\n"))

    # The launcher's own terminal.

    def _own_terminal(self) -> Terminal:
        if self._own is None:
            self._own = self._make_own()
        return self._own

    def _waiting(self) -> list[int]:
        """Ranks that wait for a line, and for this terminal."""
        mine = (each for each in self._ranks.values() if each.rank not in self._attached)
        return sorted(each.rank for each in mine if each.prompt is not None)

    def _choose(self) -> None:
        current = self._ranks.get(self._current) if self._current is not None else None
        if current is not None and current.prompt is not None:
            return
        others = self._waiting()
        is_stepping = current is not None and current.is_stopped
        if is_stepping and current is not None and (not others or self._now() < current.sent_s + _STEP_S):
            return
        if others:
            self._move_to(_next_of(others, self._current))
        elif not is_stepping:
            self._current = None

    def _move_to(self, rank: int) -> None:
        self._current = rank
        self._ranks[rank].is_asked = False
        others = [each for each in self._waiting() if each != rank]
        more = f"; {ranks_in_words(others)} wait{'s' * (len(others) == 1)} (`next rank` goes there)" if others else ""
        self._say(f"rank {rank} is in the debugger at {self._ranks[rank].at}{more}")

    def _moves_on(self, line: str) -> bool:
        """Whether the line is for the launcher: which rank the terminal belongs to."""
        words = line.split()
        if words == ["next", "rank"]:
            wanted = _next_of(self._waiting(), self._current)
        elif words[:1] == ["%rank"] and len(words) == 2 and words[1].isdecimal():
            wanted = int(words[1])
        else:
            return False
        if wanted in self._waiting():
            self._move_to(wanted)
        else:
            waiting = self._waiting()
            verb = "is" if len(waiting) == 1 else "are"
            self._say(f"rank {wanted} is not in the debugger: {ranks_in_words(waiting)} {verb}")
            self._ranks[self._current or 0].is_asked = False
        return True


def _next_of(ranks: list[int], current: int | None) -> int:
    """The one after the current rank, in a circle."""
    return next((rank for rank in ranks if current is not None and rank > current), ranks[0])
