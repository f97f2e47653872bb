"""Whose debugger the launcher's terminal belongs to, with a clock and messages that the test gives it."""

import json
from pathlib import Path
from typing import Any

from rollcall.coordinator.debugging.debuggers import Debuggers
from rollcall.protocol.messages import ToRank


class FakeTerminal:
    def __init__(self) -> None:
        self.shown: list[str] = []
        self.typed: list[str | None] = []

    def show(self, text: str) -> None:
        self.shown.append(text)

    def ask(self, prompt: str) -> None:
        self.shown.append(prompt)

    def lines(self) -> list[str | None]:
        found, self.typed = self.typed, []
        return found

    def close(self) -> None:
        self.shown.append("closed")


class FakeAgent:
    def __init__(self) -> None:
        self.sent: list[tuple[int, str]] = []

    def send(self, message: ToRank) -> None:
        self.sent.append((message.rank, json.loads(message.data)["line"]))


class Scene:
    """Debuggers, with the ranks that talk to them."""

    def __init__(self) -> None:
        self.now_s, self.said, self.terminal, self.agent = 0.0, [], FakeTerminal(), FakeAgent()  # type: ignore[var-annotated]
        self.debuggers = Debuggers(self.said.append, lambda: self.now_s, lambda: self.terminal)

    def stops(self, *ranks: int) -> None:
        for rank in ranks:
            self.debuggers.note_opened(self.agent, rank)  # type: ignore[arg-type]
            self.tells(rank, kind="stopped", at="train.py:7", is_attached=False)
            self.asks(rank)

    def asks(self, rank: int) -> None:
        self.tells(rank, kind="ask", prompt=f"({rank}) ")

    def goes_on(self, rank: int) -> None:
        self.tells(rank, kind="running", stays=False)

    def tells(self, rank: int, **message: Any) -> None:
        self.debuggers.note_data(rank, json.dumps(message).encode() + b"\n")
        self.debuggers.tick()

    def types(self, line: str | None) -> None:
        self.terminal.typed.append(line)
        self.debuggers.tick()


def test_the_prompt_belongs_to_one_rank_and_moves_on() -> None:
    scene = Scene()
    scene.stops(0, 1, 2)
    assert scene.terminal.shown == ["(0) "]
    scene.types("p x\n")
    scene.asks(0)
    scene.types("c\n")
    scene.goes_on(0)
    scene.debuggers.tick()
    assert scene.agent.sent == [(0, "p x\n"), (0, "c\n")]
    assert scene.terminal.shown == ["(0) ", "(0) ", "(1) "]
    assert scene.said[-1] == "rank 1 is in the debugger at train.py:7; rank 2 waits (`next rank` goes there)"
    for rank in (1, 2):
        scene.types("c\n")
        scene.goes_on(rank)
    assert not scene.debuggers.is_active


def test_it_is_moved_by_hand() -> None:
    """`next rank` goes round in a circle, `%rank 2` to that one; a rank that runs is refused, and the prompt comes
    back. No line of these reaches a rank."""
    scene = Scene()
    scene.stops(0, 2)
    for line in ("next rank\n", "next rank\n", "%rank 2\n", "%rank 1\n"):
        scene.types(line)
    scene.debuggers.tick()
    assert scene.terminal.shown == ["(0) ", "(2) ", "(0) ", "(2) ", "(2) "]
    assert scene.said[-1] == "rank 1 is not in the debugger: ranks 0,2 are"
    assert scene.agent.sent == []


def test_a_rank_that_waits_for_others_gives_the_prompt_away() -> None:
    """It stepped over an op in which it waits for a rank at its own prompt. A quick step keeps the prompt."""
    scene = Scene()
    scene.stops(0, 1)
    scene.types("n\n")
    scene.now_s = 0.5
    scene.debuggers.tick()
    assert scene.terminal.shown == ["(0) "]
    scene.now_s = 2.0
    scene.debuggers.tick()
    scene.debuggers.tick()
    assert scene.terminal.shown == ["(0) ", "(1) "]


def test_the_end_of_input_reaches_every_rank() -> None:
    """pdb quits then, so that no rank waits."""
    scene = Scene()
    scene.stops(0, 1)
    scene.types(None)
    scene.debuggers.note_closed(0)
    scene.debuggers.tick()
    scene.types(None)
    assert scene.agent.sent == [(0, ""), (1, "")]


def test_two_debuggers_at_once(tmp_path: Path) -> None:
    scene = Scene()
    assert scene.debuggers.attach(1, tmp_path / "a.ask") == ""
    assert scene.debuggers.attach(1, tmp_path / "b.ask") == "rank 1 has a debugger already: quit it first"
    scene.stops(0)
    assert scene.debuggers.attach(0, tmp_path / "c.ask") == "rank 0 has a debugger already: quit it first"


def test_who_has_attached_and_is_gone_lets_the_rank_go_on(tmp_path: Path) -> None:
    """Its question is no longer there."""
    scene = Scene()
    scene.debuggers.attach(1, tmp_path / "a.ask")
    scene.stops(1)
    assert scene.agent.sent == [(1, "")]
    assert scene.terminal.shown == []
    scene.goes_on(1)
    assert not scene.debuggers.is_active
