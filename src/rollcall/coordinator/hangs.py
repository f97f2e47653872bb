"""Notices that no rank of any host makes progress, collects their stacks, and explains why."""

import time

from rollcall.coordinator.agents import Agent, Agents
from rollcall.coordinator.run_folder import RunFolder
from rollcall.protocol.messages import DumpStacks, Standstill
from rollcall.protocol.plan import Plan

_STACKS_S = 10.0  # for all hosts to send the stacks of their ranks
_MOVING = Standstill(is_still=False, is_waiting=False)


class Hangs:
    def __init__(self, plan: Plan, folder: RunFolder, agents: Agents) -> None:
        self._plan, self._folder, self._agents = plan, folder, agents
        self._standstills: dict[int, Standstill] = {}  # by node
        self._was_hang = False
        self._awaited: set[int] | None = None  # nodes whose stacks have not come yet, while a hang is looked at
        self._awaited_until_s = 0.0
        self.is_explained = False  # the hang that ended the run

    def note(self, agent: Agent, standstill: Standstill) -> None:
        self._standstills[agent.node] = standstill

    def note_stacks(self, agent: Agent) -> None:
        if self._awaited is not None:
            self._awaited.discard(agent.node)

    def tick(self, attempt: int) -> bool:
        """Whether the run is to be ended: it hangs, this was said, and the user wants it so."""
        if self._awaited is not None:
            if self._awaited and time.monotonic() < self._awaited_until_s:
                return False
            self._awaited = None
            return self._explain_hang(attempt)
        nodes = [agent.node for agent in self._agents.all if agent.is_up]
        standstills = [self._standstills.get(node, _MOVING) for node in nodes]
        is_hang = bool(nodes) and all(s.is_still for s in standstills) and any(s.is_waiting for s in standstills)
        if is_hang and not self._was_hang:
            self._ask_for_stacks(nodes)
        if self._was_hang and not is_hang:
            self._folder.note_attempt(attempt, hung=False)
            self._folder.save()
        self._was_hang = is_hang
        return False

    def _ask_for_stacks(self, nodes: list[int]) -> None:
        addresses = self._folder.addresses()
        for agent in self._agents.all:
            agent.send(DumpStacks({name: at for name, at in addresses.items() if name != agent.name}))
        self._awaited, self._awaited_until_s = set(nodes), time.monotonic() + _STACKS_S

    def _explain_hang(self, attempt: int) -> bool:
        self._folder.note_attempt(attempt, hung=True)
        self._folder.save()
        self.is_explained = not self.explain(is_running=True) and self._plan.on_hang == "stop"
        return self.is_explained

    def explain(self, is_running: bool = False) -> bool:
        """Print the verdict. Returns whether the run is to be left alone: the rank that all wait for computes."""
        from rollcall.explain.terminal import tell  # here: numpy is needed only when something went wrong

        return tell(self._folder.path, self._plan.hang_after_s if is_running else None)
