"""The launcher asks all hosts for the stacks of their ranks, and answers whoever asked."""

import json
from pathlib import Path
from typing import Any

import pytest

from rollcall.coordinator.agents import Agents
from rollcall.coordinator.observers.stack_questions import StackQuestions
from rollcall.protocol.hosts import Host
from rollcall.protocol.messages import CollectStacks, Message

STACK = {"host": "a", "pid": 1, "frames": [], "why_not": ""}


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Questions:
    """Two hosts, of which a test says what they answer."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.clock, self.sent = folder / "stacks", Clock(), list[Message]()
        self.agents = Agents([Host("a", 1), Host("b", 1)], lambda *_: None, lambda _: None)
        for agent in self.agents.all:
            agent.is_ready = True
            agent.connection = object()  # type: ignore[assignment]  # it is only asked whether there is one
            monkeypatch.setattr(agent, "send", self.sent.append)
        self.questions = StackQuestions(folder, lambda _: {"exit_codes": {}}, self.clock)
        self.folder.mkdir()

    def tick(self, seconds: float = 1.0) -> None:
        self.clock.now_s += seconds
        self.questions.tick(self.agents, 0)

    def answer(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / f"{name}.json").read_text())
        return found


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Questions:
    asked = Questions(tmp_path, monkeypatch)
    (asked.folder / "first.ask").touch()
    asked.tick()
    return asked


def test_all_hosts_are_asked_once(asked: Questions) -> None:
    asked.tick()
    assert asked.sent == [CollectStacks(1)] * 2


def test_the_answer_comes_when_all_hosts_have_answered(asked: Questions) -> None:
    asked.questions.note_answer(0, 1, {"0": STACK})
    asked.tick()
    assert not list(asked.folder.glob("*.json"))
    asked.questions.note_answer(1, 1, {"1": STACK})
    asked.tick()
    assert asked.answer("first")["stacks"] == {"0": STACK, "1": STACK}
    assert not list(asked.folder.glob("*.ask"))


def test_a_host_that_does_not_answer_is_named(asked: Questions) -> None:
    asked.questions.note_answer(0, 1, {"0": STACK})
    asked.tick(100)
    assert (asked.answer("first")["silent"], list(asked.answer("first")["stacks"])) == (["b"], ["0"])


def test_whoever_asks_meanwhile_gets_an_answer_of_its_own(asked: Questions) -> None:
    """And not stacks that are older than the question."""
    (asked.folder / "second.ask").touch()
    asked.questions.note_gone(1)
    asked.questions.note_answer(0, 1, {"0": STACK})
    asked.tick()
    assert not (asked.folder / "second.json").exists()
    assert asked.sent[2:] == [CollectStacks(2)] * 2
    asked.questions.note_answer(0, 1, {"0": STACK})  # a late answer to the first question
    asked.questions.note_gone(0)
    asked.questions.note_gone(1)
    asked.tick()
    assert asked.answer("second")["stacks"] == {}


def test_nothing_is_left_when_the_run_is_over(asked: Questions) -> None:
    asked.questions.close()
    assert not asked.folder.exists()
