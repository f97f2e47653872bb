"""`rollcall doctor`: checks hosts before a run needs them, and measures how fast they reach each other.

The same agents answer as in a run, but they import no torch and start no ranks.
"""

import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from rollcall.coordinator import health, preflight
from rollcall.coordinator.agents import Agent, Agents, Disconnected
from rollcall.protocol.hosts import rounds
from rollcall.protocol.messages import (
    CheckHost,
    CountGpus,
    Finish,
    GpusCounted,
    HostChecked,
    LinkMeasured,
    MasterReached,
    MeasureLink,
    Message,
    OpenPort,
    Ping,
    Pong,
    PortOpened,
    ReachMaster,
    Refused,
)
from rollcall.protocol.plan import Plan
from rollcall.transport import select

_ANSWER_S = 20.0
_MEASURE_S = 30.0
_CHECK_S = 90.0  # torch is imported, and the host computes
_COUNT_S = 120.0  # torch is imported for that
_PINGS = 5
_WRONG_CLOCK_S = 0.5  # snapshots and logs of hosts can no longer be compared


@dataclass(frozen=True)
class Check:
    """What was found on one host. Empty `problem`: all is well."""

    host: str
    stage: str
    python: str = ""
    torch: str = ""
    gpus: str = ""
    clock: str = ""
    address: str = ""
    interface: str = ""
    problem: str = ""


@dataclass(frozen=True)
class Findings:
    checks: list[Check]
    ways: list[health.LinkSpeed]  # between each pair of hosts
    problems: list[str]  # each with what to do
    health: dict[str, dict[str, Any]] = field(default_factory=dict)  # by host: what a deep check found

    @property
    def bad_hosts(self) -> list[str]:
        return [check.host for check in self.checks if check.problem]


def examine(plan: Plan, tell: Callable[[str], None], is_deep: bool = False) -> Findings:
    """Examine all hosts of the plan. With `is_deep`, also measure how fast each of them computes."""
    with select.opened(plan, "check", tell) as (known, start):
        agents = Agents(known.hosts, start, tell)
        try:
            return _Examination(known, agents, is_deep).findings()
        finally:
            agents.send_all(Finish())
            for _ in _until(agents, 5.0, lambda: agents.are_gone):
                pass
            agents.kill()


class _Examination:
    def __init__(self, plan: Plan, agents: Agents, is_deep: bool) -> None:
        self._plan, self._agents, self._is_deep = plan, agents, is_deep
        self._port = plan.master_port
        self._problems: dict[str, list[str]] = {}

    def findings(self) -> Findings:
        self._agents.start(self._agents.all)
        agents = self._agents.all
        for _ in _until(self._agents, _ANSWER_S, lambda: all(m.info or m.lost for m in agents)):
            pass
        here = [agent for agent in agents if agent.info is not None and not agent.lost]
        for agent in agents:
            if agent not in here:
                self._note(agent, preflight.state_of(agent))
        self._read_clocks(here)
        gpus = self._count_gpus(here)
        reached, opened = self._open_ports(here)
        links = list(self._measure(here, opened))
        facts = self._look_deep(here, opened, links) if self._is_deep else {}
        checks = [self._check(agent, gpus, reached, opened) for agent in agents]
        return Findings(checks, links, self._all_problems(here), facts)

    def _look_deep(
        self, here: list[Agent], opened: dict[Agent, tuple[PortOpened, str]], links: list[health.LinkSpeed]
    ) -> dict[str, dict[str, Any]]:
        """Add what is wrong with hosts to the problems. A host that seems slow is measured once more, alone: a machine
        that was busy for a moment is not bad."""
        links += self._measure(here, opened, is_backwards=True)
        facts = self._check_hosts(here)
        first = health.find(facts, links)
        slow = {each.host for each in first if each.measured == "host"}
        for agent in (agent for agent in here if agent.name in slow):
            facts.update(health.better(facts, self._check_hosts([agent])))
        if any(each.measured == "links" for each in first):
            again = [*self._measure(here, opened), *self._measure(here, opened, is_backwards=True)]
            links[:] = health.faster(links, again)
        by_name = {agent.name: agent for agent in here}
        for problem in health.find(facts, links):
            self._note(by_name[problem.host], problem.text)
        return facts

    def _check_hosts(self, agents: list[Agent]) -> dict[str, dict[str, Any]]:
        """By host: what it reports about itself.

        Virtual hosts share a machine, so they are asked one after the other."""
        asked: dict[Agent, Message] = {agent: CheckHost(self._plan.cwd) for agent in agents}
        turns = [{agent: asked[agent]} for agent in agents] if self._plan.transport.kind == "virtual" else [asked]
        facts = {}
        for turn in turns:
            got = self._ask(turn, HostChecked, _CHECK_S)
            for agent in turn:
                answer = got.get(agent)
                if not isinstance(answer, HostChecked):
                    self._note(agent, "its checks were not answered")
                elif answer.error:
                    self._note(agent, answer.error)
                else:
                    facts[agent.name] = answer.facts
        return facts

    def _note(self, agent: Agent, text: str) -> None:
        self._problems.setdefault(agent.name, []).append(text)

    def _all_problems(self, here: list[Agent]) -> list[str]:
        own = [f"{name}: {text}" for name, texts in self._problems.items() for text in texts]
        differ = preflight.differences(here)
        return [*own, *([differ] if differ else [])]

    def _ask(self, asked: dict[Agent, Message], kind: type[Message], timeout_s: float) -> dict[Agent, Message]:
        """Each agent's answer of a kind; those that do not answer in time are missing."""
        for agent, message in asked.items():
            agent.send(message)
        got: dict[Agent, Message] = {}
        for agent, message in _until(self._agents, timeout_s, lambda: set(got) >= {m for m in asked if not m.lost}):
            if isinstance(message, kind | Refused) and agent in asked:
                got[agent] = message
        return got

    def _read_clocks(self, here: list[Agent]) -> None:
        for _ in range(_PINGS):
            self._ask({agent: Ping(time.monotonic_ns()) for agent in here}, Pong, _ANSWER_S)
        for agent in here:
            offset_s = agent.clock.offset_ns / 1e9
            if abs(offset_s) > _WRONG_CLOCK_S:
                self._note(agent, f"its clock is {offset_s:+.1f} s off — run an NTP client there (chrony, timesyncd)")

    def _count_gpus(self, here: list[Agent]) -> dict[Agent, GpusCounted]:
        """Of hosts on which the system shows GPUs: how many torch sees."""
        asked: dict[Agent, Message] = {m: CountGpus() for m in here if m.info is not None and m.info.gpus}
        got = self._ask(asked, GpusCounted, _COUNT_S)
        found = {m: answer for m, answer in got.items() if isinstance(answer, GpusCounted)}
        for agent, counted in found.items():
            assert agent.info is not None
            if counted.gpus < agent.info.gpus:
                self._note(
                    agent,
                    f"torch sees {counted.gpus} of {agent.info.gpus} GPUs — install torch's CUDA build, or a newer"
                    f" driver",
                )
        return found

    def _open_ports(self, here: list[Agent]) -> tuple[dict[Agent, MasterReached], dict[Agent, tuple[PortOpened, str]]]:
        """Every host opens a port; all others connect to the master's."""
        if not here:
            return {}, {}
        tokens = {agent: secrets.token_hex(16) for agent in here}
        ports = {agent: self._port if agent is here[0] else 0 for agent in here}
        answers = self._ask({m: OpenPort(0, ports[m], tokens[m]) for m in here}, PortOpened, _ANSWER_S)
        for agent, answer in answers.items():
            if isinstance(answer, Refused):
                self._note(agent, answer.text)
        opened = {m: (answer, tokens[m]) for m, answer in answers.items() if isinstance(answer, PortOpened)}
        if here[0] not in opened:
            return {}, opened
        port, token = opened[here[0]]
        addresses = self._addresses(here[0], port)
        asked: dict[Agent, Message] = {m: ReachMaster(0, addresses, port.port, token) for m in here[1:]}
        got = self._ask(asked, MasterReached, _ANSWER_S)
        reached = {m: answer for m, answer in got.items() if isinstance(answer, MasterReached)}
        for agent in here[1:]:
            if agent not in reached or not reached[agent].own:
                self._note(agent, preflight.unreachable(here[0], addresses, port.port, reached.get(agent)))
        return reached, opened

    def _addresses(self, agent: Agent, port: PortOpened) -> list[str]:
        if self._plan.master_addr:
            return [self._plan.master_addr]
        return [*([agent.host.address] if agent.host.address else []), *port.addresses]

    def _measure(
        self, here: list[Agent], opened: dict[Agent, tuple[PortOpened, str]], is_backwards: bool = False
    ) -> Iterator[health.LinkSpeed]:
        """Each pair once, in rounds where no host is in two pairs."""
        for forwards in rounds([agent for agent in here if agent in opened]):
            pairs = [(end, start) for start, end in forwards] if is_backwards else forwards
            asked: dict[Agent, Message] = {}
            for start, end in pairs:
                port, token = opened[end]
                asked[start] = MeasureLink(self._addresses(end, port), port.port, token)
            got = self._ask(asked, LinkMeasured, _MEASURE_S)
            for start, end in pairs:
                answer = got.get(start)
                if not isinstance(answer, LinkMeasured):
                    answer = LinkMeasured(error="no answer")
                if answer.error:
                    self._note(start, f"cannot reach {end.name} ({answer.error}) — firewall between them?")
                yield health.LinkSpeed(start.name, end.name, answer.round_trip_s, answer.bytes_per_s, answer.error)

    def _check(
        self,
        agent: Agent,
        gpus: dict[Agent, GpusCounted],
        reached: dict[Agent, MasterReached],
        opened: dict[Agent, tuple[PortOpened, str]],
    ) -> Check:
        problem = "; ".join(self._problems.get(agent.name, []))
        if agent.info is None or agent.lost:
            return Check(agent.name, agent.stage, problem=problem)
        address, interface = "", ""
        if agent in reached and reached[agent].own:
            address, interface = next(iter(reached[agent].own.values()))
        elif agent in opened:
            answers = opened[agent][0]
            address = next(iter(self._addresses(agent, answers)), "")
            interface = answers.addresses.get(address, "")
        error_ms = (agent.clock.error_ns or 0) / 1e6
        return Check(
            host=agent.name,
            stage="answered",
            python=agent.info.python,
            torch=agent.info.torch or "missing",
            gpus=str(gpus[agent].gpus if agent in gpus else agent.info.gpus),
            clock=f"{agent.clock.offset_ns / 1e6:+.1f} ± {error_ms:.1f} ms",
            address=address,
            interface=interface,
            problem=problem,
        )


def _until(agents: Agents, timeout_s: float, done: Callable[[], bool]) -> Iterator[tuple[Agent, Message]]:
    """The messages that come until `done` is true, or the time is over."""
    deadline = time.monotonic() + timeout_s
    while not done() and time.monotonic() < deadline:
        event = agents.next(0.05)
        if event is None:
            continue
        agent, message = event
        agent.note(message)
        if isinstance(message, Disconnected):
            agent.lost = agent.lost or preflight.why_disconnected(agent)
        yield agent, message
