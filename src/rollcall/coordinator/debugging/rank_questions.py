"""Answers `rollcall attach` and `rollcall profile`: each writes a file in the run's folder that says what the ranks
shall do, and reads their answers from another file.
"""

import contextlib
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollcall.coordinator.agents import Agent, Agents
from rollcall.live.questions import why_no_rank, write_answer
from rollcall.protocol.messages import AskRank
from rollcall.runs import REQUESTS

_EVERY_S = 0.1


@dataclass
class _Question:
    path: Path
    does: str
    awaited: dict[int, int]  # ranks that have not answered: the node of each
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)


class RankQuestions:
    def __init__(
        self,
        folder: Path,
        facts: Callable[[int], dict[str, Any]],
        attach: Callable[[int, Path], str],
        detach: Callable[[int], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`facts` gives what is known of an attempt; `attach` gives a rank a terminal, or says why not, and `detach`
        takes it back."""
        self._folder, self._facts, self._now = folder / REQUESTS, facts, now
        self._attach, self._detach = attach, detach
        self._next_s = 0.0
        self._number = 0
        self._open: dict[int, _Question] = {}
        self._seen: set[Path] = set()

    def tick(self, agents: Agents, attempt: int) -> None:
        now_s = self._now()
        if now_s < self._next_s:
            return
        self._next_s = now_s + _EVERY_S
        for path in sorted({*self._folder.glob("*.ask")} - self._seen):
            self._seen.add(path)
            with contextlib.suppress(OSError, ValueError, KeyError):  # it is gone again, or not whole
                self._begin(agents, attempt, path)

    def note_answer(self, rank: int, number: int, answer: dict[str, Any]) -> None:
        question = self._open.get(number)
        if question is not None and question.awaited.pop(rank, None) is not None:
            if question.does == "attach" and "error" in answer:
                self._detach(rank)
            question.answers[str(rank)] = answer
            self._finish_if_whole(number)

    def note_gone(self, node: int) -> None:
        for number, question in list(self._open.items()):
            for rank in [rank for rank, its in question.awaited.items() if its == node]:
                self.note_answer(rank, number, {"error": "is on a host that is gone"})

    def close(self) -> None:
        """The run is over: remove all questions."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _begin(self, agents: Agents, attempt: int, path: Path) -> None:
        asked = json.loads(path.read_text())
        facts = self._facts(attempt)
        known = sorted(rank for ranks in facts["hosts"].values() for rank in ranks)
        ranks = known if asked["ranks"] is None else asked["ranks"]
        problem = _problem(ranks, known, facts["exit_codes"])
        if not problem and asked["request"]["do"] == "attach":
            problem = self._attach(ranks[0], path)
        if problem:
            write_answer(path, {"error": problem})
            return
        running = [rank for rank in ranks if str(rank) not in facts["exit_codes"]]
        self._number += 1
        asked_agents = {rank: agent for rank in running if (agent := _agent_of(agents, rank)) is not None}
        nodes = {rank: agent.node for rank, agent in asked_agents.items()}
        self._open[self._number] = _Question(path, asked["request"]["do"], nodes)
        for rank, agent in asked_agents.items():
            agent.send(AskRank(rank, self._number, asked["request"]))
        self._finish_if_whole(self._number)

    def _finish_if_whole(self, number: int) -> None:
        if not self._open[number].awaited:
            question = self._open.pop(number)
            write_answer(question.path, {"answers": question.answers})


def _problem(ranks: list[int], known: list[int], exit_codes: dict[str, int]) -> str:
    ended = {int(rank): code for rank, code in exit_codes.items()}
    if set(ranks) == set(known):  # all were meant, also by number: those that have ended are left out
        return "all ranks of this run have ended" if set(known) <= ended.keys() else ""
    return next((why for rank in ranks if (why := why_no_rank(rank, known, ended))), "")


def _agent_of(agents: Agents, rank: int) -> Agent | None:
    return next((agent for agent in agents.all if agent.is_up and rank in agent.ranks), None)
