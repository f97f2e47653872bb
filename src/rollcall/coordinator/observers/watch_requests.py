"""Whether somebody watches a run: `rollcall watch` touches a file of the run's folder each time it reads.

As long as it does, the launcher asks hosts that do not share the folder for new records of their rings. It sends the
next question only after the answer, so a slow connection shows older data, but is never full.
"""

import os
import time
from pathlib import Path

from rollcall.coordinator.agents import Agents
from rollcall.protocol.messages import SendRings
from rollcall.runs import WATCHED

_EVERY_S = 1.0
_GONE_AFTER_S = 5.0


class WatchRequests:
    def __init__(self, folder: Path) -> None:
        self._path = folder / WATCHED
        self._next_s = 0.0
        self._touched_ns = self._mtime_ns()
        self._until_s = 0.0
        self._asked: set[int] = set()  # nodes that have not answered yet

    def tick(self, agents: Agents, attempt: int) -> None:
        """While somebody watches, ask the hosts that do not share the folder."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + _EVERY_S
        # Only a change of the time counts: `rollcall watch` may run on another machine, with another clock.
        if (touched_ns := self._mtime_ns()) != self._touched_ns:
            self._touched_ns, self._until_s = touched_ns, now_s + _GONE_AFTER_S
        if now_s >= self._until_s:
            return
        for agent in agents.all:
            if agent.is_up and agent.is_ready and not agent.shared and agent.node not in self._asked:
                self._asked.add(agent.node)
                agent.send(SendRings(attempt))

    def note_answer(self, node: int) -> None:
        """It has sent what it has; or it is gone."""
        self._asked.discard(node)

    def _mtime_ns(self) -> int:
        try:
            return os.stat(self._path).st_mtime_ns
        except OSError:
            return 0
