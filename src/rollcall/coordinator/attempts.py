"""The phases of a run: hosts answer, find the master, get ready; then one attempt after the other.

    GATHERING → (several hosts: OPENING → REACHING →) PREPARING → RUNNING → FINISHING
                                            ↑                        │ a rank failed, a host was lost
                                            └── GATHERING ←── ENDING ┘ or FINISHING, if no attempt is left

A run on one machine is a run on one host: the same phases, without the search for a master. The launcher's loop calls a
`note_…` method for each message, and `tick`. Nothing here waits, and the clock is passed in.
"""

import os
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from enum import Enum, auto
from typing import Any, Protocol

from rollcall.compat.torch_dns import impatient_env
from rollcall.coordinator.agents import Agent, Agents
from rollcall.coordinator.preflight import differences, missing, nearest_address, slots_of, why_disconnected
from rollcall.errors import LostHostError, RollcallError, UsageError, WorldError
from rollcall.protocol.messages import (
    AttemptOver,
    Begin,
    Cancel,
    ClosePort,
    Finish,
    HostInfo,
    MasterReached,
    OpenPort,
    PortOpened,
    Prepare,
    ReachMaster,
    Refused,
    Stop,
)
from rollcall.protocol.plan import LOOPBACK, THIS_HOST, Plan
from rollcall.protocol.timing import SETTLE_S

_SETTLE_HOSTS_S = 12.0  # from the first host that failed to come until the others count as missing, too
_REJOIN_S = 3.0  # for an agent that was killed to come back before the next attempt begins without it
_NEEDED_S = 30.0  # the same where there can be no attempt without it
_TRY_AGAIN_S = 10.0  # a host that is lost is asked so often whether it is back
_TELL_AFTER_S, _TELL_EVERY_S = 5.0, 30.0


class Phase(Enum):
    """Where the run stands."""

    GATHERING = auto()  # hosts answer
    OPENING = auto()  # the master opens a port
    REACHING = auto()  # the others look for it
    PREPARING = auto()  # torch is imported everywhere
    RUNNING = auto()
    ENDING = auto()  # the attempt has failed; its ranks are being ended
    FINISHING = auto()  # agents exit


class Listener(Protocol):
    """What Attempts calls when it has decided something."""

    def say(self, text: str) -> None: ...

    def attempt_began(self, hosts: dict[str, dict[str, Any]]) -> None: ...

    def host_lost(self, agent: Agent) -> None: ...

    def attempt_over(self, attempt: int, is_followed: bool) -> None: ...


class Attempts:
    def __init__(
        self, plan: Plan, agents: Agents, folder: str, listener: Listener, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._plan, self._agents, self._folder, self._listener, self._now = plan, agents, folder, listener, now
        self._least = plan.transport.min_hosts or plan.places
        self._places = agents.all[: plan.places]  # whose ranks come in this order; the other hosts are spares
        self.attempt = plan.first_attempt
        self.failed: RollcallError | None = None
        self.phase = Phase.GATHERING
        self.restarts_left = plan.max_restarts
        self._first_missing_s: float | None = None
        self._wait_for_hosts_s = _SETTLE_HOSTS_S
        self._asked_again_s = 0.0
        self._is_stopping = False
        self._restart_waiting()
        self._reset()
        self._agents.start(agents.all)

    def _restart_waiting(self) -> None:
        self._since_s = self._now()
        self._told_s = self._since_s - _TELL_EVERY_S + _TELL_AFTER_S

    def _reset(self) -> None:
        self._taking_part: list[Agent] = []
        self._token = os.urandom(16).hex()
        self._opened: PortOpened | None = None
        self._reached: dict[Agent, MasterReached] = {}
        self._address, self._port = LOOPBACK, self._plan.master_port
        self._is_port_closed = True
        self._over: set[Agent] = set()
        self._done: set[Agent] = set()
        self._cancel_s: float | None = None
        self._elsewhere = ""
        self._is_cancelled = False

    @property
    def hosts_may_differ(self) -> bool:
        """Whether the run may continue with fewer hosts: then an attempt need not be one of the restarts."""
        return self._least < len(self._agents.all)

    @property
    def taking_part(self) -> list[Agent]:
        """The agents of this attempt while its ranks run; else none."""
        return self._taking_part if self.phase is Phase.RUNNING else []

    # What has come from an agent.

    def note_opened(self, agent: Agent, opened: PortOpened) -> None:
        if self._taking_part and agent is self._taking_part[0]:
            self._opened = opened

    def note_reached(self, agent: Agent, reached: MasterReached) -> None:
        self._reached[agent] = reached

    def note_closed(self) -> None:
        self._is_port_closed = True

    def note_rank_failed(self) -> None:
        self._cancel_s = self._cancel_s or self._now() + SETTLE_S

    def restart(self) -> None:
        """The attempt hangs: it counts as failed, and the next one as a restart."""
        self._cancel()

    def note_done(self, agent: Agent) -> None:
        self._done.add(agent)

    def note_attempt_over(self, agent: Agent, over: AttemptOver) -> None:
        """All its ranks are gone there. On a host that was started by hand it may have failed elsewhere."""
        self._over.add(agent)
        if self.phase is Phase.RUNNING and over.elsewhere:
            self._elsewhere = over.elsewhere
            self.phase = Phase.ENDING

    def note_refused(self, agent: Agent, refused: Refused) -> None:
        is_alone = len(self._agents.all) == 1
        self.fail(_with_code(refused.text if is_alone else f"{agent.name}: {refused.text}", refused.exit_code))

    def note_disconnected(self, agent: Agent) -> None:
        if self.phase is Phase.FINISHING or self._is_stopping:
            return
        agent.lost = agent.lost or why_disconnected(agent)
        if agent not in self._taking_part:
            if agent.is_prepared:
                self._listener.say(f"{agent.name} is no longer a spare: it {agent.lost}")
            return
        if self.phase in (Phase.RUNNING, Phase.ENDING):
            self._listener.host_lost(agent)
            self._cancel()
        else:  # it had answered, but is gone before the attempt began
            self._first_missing_s = self._now()
            self.phase = Phase.GATHERING

    def stop(self, message: Stop) -> None:
        """The user wants an end: agents that have no ranks yet have nothing to end."""
        self._is_stopping = True
        self._agents.send_all(message)
        up = [agent for agent in self._agents.all if agent.is_up]
        if not up or not all(agent.is_ready for agent in up):  # those that are not connected yet hear no message
            self._agents.kill()

    def fail(self, error: RollcallError) -> None:
        """End the run with this sentence; the first one counts."""
        if self.failed is None:
            self.failed = error
        self.phase = Phase.FINISHING
        self._agents.send_all(Finish())
        if not all(agent.is_ready for agent in self._agents.all if agent.is_up):
            self._agents.kill()

    # What is due.

    def tick(self) -> None:
        if self._is_stopping or self.phase is Phase.FINISHING:
            return
        step = {
            Phase.GATHERING: self._while_gathering,
            Phase.OPENING: self._while_opening,
            Phase.REACHING: self._while_reaching,
            Phase.PREPARING: self._while_preparing,
            Phase.RUNNING: self._while_running,
            Phase.ENDING: self._while_ending,
        }[self.phase]
        try:
            step()
        except RollcallError as error:
            self.fail(error)

    def _while_gathering(self) -> None:
        """Waits until all hosts have answered, or enough of them if the others will not."""
        agents = self._agents.all
        here = [agent for agent in agents if agent.info is not None and agent.is_up]
        if len(here) == len(agents) or (len(here) >= self._least and self._others_settled(here)):
            self._take_part(here)
            return
        lost = [agent for agent in agents if agent.lost]
        if lost and self._first_missing_s is None:
            self._first_missing_s = self._now()
        if len(agents) - len(lost) < self._least and self._others_settled(here):
            raise WorldError(missing(agents, self._plan))
        waited_s = self._now() - self._since_s
        if waited_s > self._plan.join_timeout_s:
            raise WorldError(f"after {waited_s:.0f} s {missing(agents, self._plan)}")
        if self._now() - self._told_s > _TELL_EVERY_S:
            self._told_s = self._now()
            self._listener.say(f"waiting: {missing(agents, self._plan)}")

    def _others_settled(self, here: list[Agent]) -> bool:
        """Whether the missing hosts can no longer come in time."""
        if all(agent.lost for agent in self._agents.all if agent not in here):
            return True
        return self._first_missing_s is not None and self._now() - self._first_missing_s > self._wait_for_hosts_s

    def _take_part(self, here: list[Agent]) -> None:
        if not self._plan.transport.allow_mixed and (text := differences(here)):
            raise UsageError(text)
        for agent in here:
            agent.host = replace(agent.host, slots=slots_of(agent, self._plan.transport.ranks))
        self._reset()
        self._taking_part = self._fill_places(here)
        if len(self._taking_part) == 1:  # its ranks meet on loopback, and nobody has to find it
            self._prepare_all()
            return
        self._taking_part[0].send(OpenPort(self.attempt, self._plan.master_port, self._token))
        self.phase = Phase.OPENING

    def _fill_places(self, here: list[Agent]) -> list[Agent]:
        """A host that is here keeps its place, so ranks keep their order; spares take the places of the others."""
        spares = [agent for agent in here if agent not in self._places]
        for place, agent in enumerate(self._places):
            if agent in here:
                continue
            if spares:
                self._places[place] = spares.pop(0)
                why = f": {agent.lost}" if agent.lost else ""  # else it is asked again, and why was said before
                self._listener.say(f"{self._places[place].name} takes the place of {agent.name}{why}")
            else:
                none_left = ", and no spare is left" if self._plan.transport.spares else ""
                self._listener.say(f"continuing without {agent.name}: {agent.lost or agent.stage}{none_left}")
        return [agent for agent in self._places if agent in here]

    def _while_opening(self) -> None:
        if self._opened is None:
            return
        self._port = self._opened.port
        for agent in self._taking_part[1:]:
            agent.send(ReachMaster(self.attempt, self._addresses(self._opened), self._port, self._token))
        self.phase = Phase.REACHING

    def _addresses(self, opened: PortOpened) -> list[str]:
        """Addresses of the master: the one that the user gave, or those that the master reported."""
        if self._plan.master_addr:
            return [self._plan.master_addr]
        known = self._taking_part[0].host.address
        return list(dict.fromkeys([*([known] if known else []), *opened.addresses]))

    def _while_reaching(self) -> None:
        if len(self._reached) < len(self._taking_part) - 1 or self._opened is None:
            return
        master = self._taking_part[0]
        self._address = nearest_address(master, self._addresses(self._opened), self._port, self._reached)
        self._is_port_closed = not master.is_prepared  # with Prepare a supervisor closes it by itself
        if master.is_prepared:
            master.send(ClosePort())
        self._prepare_all()

    def _prepare_all(self) -> None:
        """Spares, too: they import torch now, and not when they are needed."""
        for agent in self._agents.all:
            if agent in self._taking_part or (agent.is_up and agent.info is not None):
                self._prepare(agent)
        self.phase = Phase.PREPARING

    def _prepare(self, agent: Agent) -> None:
        if agent.is_prepared or agent.connection is None:
            return
        agent.is_prepared = True
        agent.stage = "importing torch"
        stdin_fd = agent.connection.stdin_fd
        # A supervisor has looked by itself whether names are answered on its host.
        env = {} if agent.connection.greets else impatient_env()
        hosts = len(self._agents.all)
        agent.send(Prepare(self._plan.on(agent.host).to_dict(), self._folder, stdin_fd, env, hosts))

    def _while_preparing(self) -> None:
        if not self._is_port_closed or not all(agent.is_ready for agent in self._taking_part):
            return
        world_size = sum(agent.host.slots for agent in self._taking_part)
        first_rank = 0
        for node_rank, agent in enumerate(self._taking_part):
            agent.first_rank, agent.stage = first_rank, "running"
            agent.send(
                Begin(
                    self.attempt,
                    node_rank,
                    len(self._taking_part),
                    first_rank,
                    world_size,
                    self._address,
                    self._port,
                    self._plan.interface or self._interface(agent),
                )
            )
            first_rank += agent.host.slots
        self.phase = Phase.RUNNING
        self._listener.attempt_began(self._facts())

    def _facts(self) -> dict[str, dict[str, Any]]:
        """For run.json: facts of each host that takes part, and its clocks."""
        return {
            (agent.info.host if agent.name == THIS_HOST and agent.info else agent.name): {
                **asdict(agent.info or HostInfo("", "", "", "", 0, 0)),
                "slots": agent.host.slots,
                "address": self._reached[agent].own[self._address][0] if agent in self._reached else self._address,
                "interface": self._interface(agent),
                "clock_offset_ns": agent.clock.offset_ns,
                "clock_error_ns": agent.clock.error_ns,
                "clock_readings": agent.clock.readings,
            }
            for agent in self._taking_part
        }

    def _interface(self, agent: Agent) -> str | None:
        """Returns the interface on the route to the master, if there is one."""
        if agent in self._reached:
            return self._reached[agent].own[self._address][1] or None
        return self._opened.addresses.get(self._address) if self._opened else None

    def _while_running(self) -> None:
        if self._done.issuperset(self._taking_part):
            self._finish()
        elif self._cancel_s is not None and self._now() >= self._cancel_s:
            self._cancel()
        elif self.hosts_may_differ:
            self._ask_lost_hosts()

    def _ask_lost_hosts(self) -> None:
        """A host that is back is prepared now, and joins the next attempt."""
        lost = [agent for agent in self._agents.all if agent.lost and agent not in self._taking_part]
        if lost and self._now() - self._asked_again_s > _TRY_AGAIN_S:
            self._asked_again_s = self._now()
            self._agents.start(lost)
        for agent in self._agents.all:
            if agent.info is not None and agent.is_up and not agent.is_prepared:
                joins = "joins the next attempt" if agent in self._places else "is a spare now"
                self._listener.say(f"{agent.name} is back, and {joins}")
                self._prepare(agent)

    def _cancel(self) -> None:
        if not self._is_cancelled:
            self._is_cancelled = True
            for agent in self._taking_part:
                agent.send(Cancel(self.attempt))
        self.phase = Phase.ENDING

    def _while_ending(self) -> None:
        """Waits until no rank of the attempt is left on any host, then begins the next attempt, if there is to be
        one."""
        if not all(agent in self._over or not agent.is_up for agent in self._taking_part):
            return
        lost = [agent for agent in self._taking_part if not agent.is_up]
        waiting = [agent for agent in self._agents.all if agent.is_up and agent not in self._taking_part]
        left = min(len(self._taking_part) - len(lost) + sum(agent.is_prepared for agent in waiting), len(self._places))
        is_restart = not lost or left < self._least  # else the run continues with the hosts that are left
        is_followed = not is_restart or self.restarts_left > 0
        self._listener.attempt_over(self.attempt, is_followed)
        if not is_followed:
            if lost and self._plan.transport.spares:
                self._listener.say(f"no spare is left to take the place of {lost[0].name}: the run ends")
            if self._elsewhere:
                raise WorldError(self._elsewhere)
            self._finish()
            return
        self.restarts_left -= is_restart
        self.attempt += 1
        is_cut_off = any(agent.is_cut_off for agent in lost)
        is_whole = left == len(self._places)
        self._wait_for_hosts_s = _NEEDED_S if left < self._least else 0.0 if is_cut_off or is_whole else _REJOIN_S
        self._gather_again()

    def _gather_again(self) -> None:
        """Gather the hosts for the next attempt: lost ones may come back."""
        self._reset()
        self.phase = Phase.GATHERING
        self._restart_waiting()
        self._first_missing_s = self._asked_again_s = self._since_s
        self._agents.start([agent for agent in self._agents.all if not agent.is_up])

    def _finish(self) -> None:
        self.phase = Phase.FINISHING
        self._agents.stop_starting()
        self._agents.send_all(Finish())


def _with_code(text: str, exit_code: int) -> RollcallError:
    kinds = {kind.exit_code: kind for kind in (UsageError, LostHostError)}
    return kinds.get(exit_code, WorldError)(text)
