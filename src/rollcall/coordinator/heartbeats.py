"""Pings hosts that are reached over a network. A host that stays silent is lost. Answers give the offset of its clock.

The launcher's loop calls a `note_…` method for each message, and `tick`. Nothing here waits; the clock is passed in.
"""

import time
from collections.abc import Callable

from rollcall.coordinator.agents import Agent, Agents
from rollcall.protocol.messages import Ping
from rollcall.protocol.timing import PING_S, SILENCE_S

_ASLEEP_S = 5.0


class Heartbeats:
    def __init__(
        self, agents: Agents, is_here: bool, say: Callable[[str], None], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._agents, self._is_here, self._say, self._now = agents, is_here, say, now
        self._pinged_s = -PING_S
        self._ticked_s = now()

    def note_host(self, agent: Agent) -> None:
        if _is_pinged(agent):  # else it has our own clock
            _ping(agent)

    def note_pong(self, agent: Agent) -> None:
        if agent.clock.is_coarse:
            _ping(agent)

    def tick(self) -> None:
        self._notice_own_sleep()
        self._ping_all()
        self._notice_silence()

    def _notice_own_sleep(self) -> None:
        """After Ctrl-Z, or after this machine was suspended: then the hosts were not silent."""
        slept_s, self._ticked_s = self._now() - self._ticked_s, self._now()
        if slept_s > _ASLEEP_S:
            if not self._is_here:  # the hosts may be gone by now, so the message says what they do
                self._say(f"rollcall here was stopped for {slept_s:.0f} s; hosts end their ranks after {SILENCE_S:g} s")
            for agent in self._agents.all:
                agent.heard_s = self._now()

    def _ping_all(self) -> None:
        if self._now() - self._pinged_s >= PING_S:
            self._pinged_s = self._now()
            for agent in self._agents.all:
                is_listening = agent.info is not None and (agent.is_ready or not agent.is_prepared)
                if is_listening and _is_pinged(agent):
                    _ping(agent)

    def _notice_silence(self) -> None:
        for agent in self._agents.all:
            is_silent = agent.is_ready and agent.is_up and self._now() - agent.heard_s > SILENCE_S
            if is_silent and _is_pinged(agent):
                agent.is_cut_off = True
                self._agents.lose(agent, f"was not heard of for {SILENCE_S:g} s: its network is cut, or it hangs")


def _is_pinged(agent: Agent) -> bool:
    return agent.connection is not None and agent.connection.needs_heartbeat


def _ping(agent: Agent) -> None:
    agent.send(Ping(time.monotonic_ns()))
