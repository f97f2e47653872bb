"""Answers `rollcall stacks`, which writes a question to a file in the run's folder, and waits for one with the answer.

All hosts are asked at once. The answer names those that do not reply in time.
"""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rollcall.coordinator.agents import Agents
from rollcall.live.questions import write_answer
from rollcall.protocol.messages import CollectStacks
from rollcall.runs import STACKS

_EVERY_S = 0.1
_HOSTS_S = 60.0  # for hosts to answer; py-spy takes seconds for each rank to read symbols


class StackQuestions:
    """One collection at a time: a question that comes during a collection is answered by the next one."""

    def __init__(
        self, folder: Path, facts: Callable[[int], dict[str, Any]], now: Callable[[], float] = time.monotonic
    ) -> None:
        """`facts` gives what is known of an attempt, `now` is a clock in seconds."""
        self._folder, self._facts, self._now = folder / STACKS, facts, now
        self._next_s = 0.0
        self._number = 0
        self._askers: list[Path] = []
        self._awaited: dict[int, str] = {}  # names of the hosts that have not answered, by node
        self._until_s = 0.0
        self._stacks: dict[str, dict[str, Any]] = {}  # by rank

    def tick(self, agents: Agents, attempt: int) -> None:
        now_s = self._now()
        if self._askers and (not self._awaited or now_s >= self._until_s):
            self._write_answer(attempt)
        if self._askers or now_s < self._next_s:
            return
        self._next_s = now_s + _EVERY_S
        self._askers = sorted(self._folder.glob("*.ask"))
        if self._askers:
            self._ask(agents)

    def note_answer(self, node: int, number: int, stacks: dict[str, dict[str, Any]]) -> None:
        if number == self._number:
            self._awaited.pop(node, None)
            self._stacks.update(stacks)

    def note_gone(self, node: int) -> None:
        self._awaited.pop(node, None)

    def close(self) -> None:
        """The run is over: remove all questions."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _ask(self, agents: Agents) -> None:
        self._number += 1
        self._until_s = self._now() + _HOSTS_S
        self._stacks = {}
        asked = [agent for agent in agents.all if agent.is_up and agent.is_ready]
        self._awaited = {agent.node: agent.name for agent in asked}
        for agent in asked:
            agent.send(CollectStacks(self._number))

    def _write_answer(self, attempt: int) -> None:
        silent = sorted(self._awaited.values())
        answer = {"attempt": attempt, "stacks": self._stacks, "silent": silent, **self._facts(attempt)}
        for asker in self._askers:
            write_answer(asker, answer)
            asker.unlink(missing_ok=True)
        self._askers, self._awaited = [], {}
