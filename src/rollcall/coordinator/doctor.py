"""`rollcall doctor`: the checks of the roll call alone, before a run needs them; and how fast hosts reach each other.

The same agents answer as in a run, only that none of them imports torch or starts a rank.
"""

import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from rollcall.coordinator import preflight
from rollcall.coordinator.agents import Crew, Gone, Member
from rollcall.protocol.messages import (
    Dismiss,
    Measure,
    Measured,
    Message,
    Open,
    Opened,
    Ping,
    Pong,
    Probe,
    Probed,
    Refused,
    Tried,
    Try,
)
from rollcall.protocol.plan import Plan
from rollcall.transport import select

_ANSWER_S = 20.0
_MEASURE_S = 30.0
_PINGS = 5
_WRONG_CLOCK_S = 0.5


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
class Way:
    """From one host to another: round trip and throughput, or why there are none."""

    start: str
    end: str
    round_trip_s: float
    bytes_per_s: float
    error: str = ""


@dataclass(frozen=True)
class Findings:
    checks: list[Check]
    ways: list[Way]
    problems: list[str]  # each with what to do


def examine(plan: Plan, tell: Callable[[str], None]) -> Findings:
    """Look at all hosts of the plan."""
    with select.opened(plan, "check", tell) as (known, start):
        crew = Crew(known.hosts, start, tell)
        try:
            return _Examination(known, crew).findings()
        finally:
            crew.send_all(Dismiss())
            for _ in _until(crew, 5.0, lambda: crew.is_gone):
                pass
            crew.kill()


class _Examination:
    def __init__(self, plan: Plan, crew: Crew) -> None:
        self._plan, self._crew = plan, crew
        self._port = plan.master_port
        self._problems: dict[str, list[str]] = {}

    def findings(self) -> Findings:
        self._crew.start(self._crew.members)
        members = self._crew.members
        for _ in _until(self._crew, _ANSWER_S, lambda: all(m.present or m.lost for m in members)):
            pass
        here = [member for member in members if member.present is not None and not member.lost]
        for member in members:
            if member not in here:
                self._note(member, preflight.state_of(member))
        self._read_clocks(here)
        gpus = self._count_gpus(here)
        tried, doors = self._open_doors(here)
        ways = list(self._measure(here, doors))
        checks = [self._check(member, gpus, tried, doors) for member in members]
        return Findings(checks, ways, self._all_problems(here))

    def _note(self, member: Member, text: str) -> None:
        self._problems.setdefault(member.name, []).append(text)

    def _all_problems(self, here: list[Member]) -> list[str]:
        own = [f"{name}: {text}" for name, texts in self._problems.items() for text in texts]
        differ = preflight.differences(here)
        return [*own, *([differ] if differ else [])]

    def _ask(self, asked: dict[Member, Message], kind: type[Message], timeout_s: float) -> dict[Member, Message]:
        """Each member's answer of a kind; those that do not answer in time are missing."""
        for member, message in asked.items():
            member.send(message)
        got: dict[Member, Message] = {}
        for member, message in _until(self._crew, timeout_s, lambda: set(got) >= {m for m in asked if not m.lost}):
            if isinstance(message, kind | Refused) and member in asked:
                got[member] = message
        return got

    def _read_clocks(self, here: list[Member]) -> None:
        for _ in range(_PINGS):
            self._ask({member: Ping(time.monotonic_ns()) for member in here}, Pong, _ANSWER_S)
        for member in here:
            offset_s = member.clock.offset_ns / 1e9
            if abs(offset_s) > _WRONG_CLOCK_S:
                self._note(member, f"its clock is {offset_s:+.1f} s off — run an NTP client there (chrony, timesyncd)")

    def _count_gpus(self, here: list[Member]) -> dict[Member, Probed]:
        """Where the system shows GPUs: how many torch sees."""
        asked: dict[Member, Message] = {m: Probe() for m in here if m.present is not None and m.present.gpus}
        found = {m: answer for m, answer in self._ask(asked, Probed, 120).items() if isinstance(answer, Probed)}
        for member, probed in found.items():
            assert member.present is not None
            if probed.gpus < member.present.gpus:
                self._note(
                    member,
                    f"torch sees {probed.gpus} of {member.present.gpus} GPUs — install torch's CUDA build, or a newer"
                    f" driver",
                )
        return found

    def _open_doors(self, here: list[Member]) -> tuple[dict[Member, Tried], dict[Member, tuple[Opened, str]]]:
        """Every host opens a door; all others knock at the master's."""
        if not here:
            return {}, {}
        tokens = {member: secrets.token_hex(16) for member in here}
        ports = {member: self._port if member is here[0] else 0 for member in here}
        opened = self._ask({m: Open(0, ports[m], tokens[m]) for m in here}, Opened, _ANSWER_S)
        for member, answer in opened.items():
            if isinstance(answer, Refused):
                self._note(member, answer.text)
        doors = {m: (answer, tokens[m]) for m, answer in opened.items() if isinstance(answer, Opened)}
        if here[0] not in doors:
            return {}, doors
        door, token = doors[here[0]]
        addresses = self._addresses(here[0], door)
        asked: dict[Member, Message] = {m: Try(0, addresses, door.port, token) for m in here[1:]}
        tried = {m: answer for m, answer in self._ask(asked, Tried, _ANSWER_S).items() if isinstance(answer, Tried)}
        for member in here[1:]:
            if member not in tried or not tried[member].own:
                self._note(member, preflight.unreachable(here[0], addresses, door.port, tried.get(member)))
        return tried, doors

    def _addresses(self, member: Member, door: Opened) -> list[str]:
        if self._plan.master_addr:
            return [self._plan.master_addr]
        return [*([member.host.address] if member.host.address else []), *door.addresses]

    def _measure(self, here: list[Member], doors: dict[Member, tuple[Opened, str]]) -> Iterator[Way]:
        """Each pair once, in rounds where no host is in two pairs."""
        for pairs in rounds([member for member in here if member in doors]):
            asked: dict[Member, Message] = {}
            for start, end in pairs:
                door, token = doors[end]
                asked[start] = Measure(self._addresses(end, door), door.port, token)
            got = self._ask(asked, Measured, _MEASURE_S)
            for start, end in pairs:
                answer = got.get(start)
                if not isinstance(answer, Measured):
                    answer = Measured(error="no answer")
                if answer.error:
                    self._note(start, f"cannot reach {end.name} ({answer.error}) — firewall between them?")
                yield Way(start.name, end.name, answer.round_trip_s, answer.bytes_per_s, answer.error)

    def _check(
        self,
        member: Member,
        gpus: dict[Member, Probed],
        tried: dict[Member, Tried],
        doors: dict[Member, tuple[Opened, str]],
    ) -> Check:
        problem = "; ".join(self._problems.get(member.name, []))
        if member.present is None or member.lost:
            return Check(member.name, member.stage, problem=problem)
        address, interface = "", ""
        if member in tried and tried[member].own:
            address, interface = next(iter(tried[member].own.values()))
        elif member in doors:
            opened = doors[member][0]
            address = next(iter(self._addresses(member, opened)), "")
            interface = opened.addresses.get(address, "")
        error_ms = (member.clock.error_ns or 0) / 1e6
        return Check(
            host=member.name,
            stage="answered",
            python=member.present.python,
            torch=member.present.torch or "missing",
            gpus=str(gpus[member].gpus if member in gpus else member.present.gpus),
            clock=f"{member.clock.offset_ns / 1e6:+.1f} ± {error_ms:.1f} ms",
            address=address,
            interface=interface,
            problem=problem,
        )


def _until(crew: Crew, timeout_s: float, done: Callable[[], bool]) -> Iterator[tuple[Member, Message]]:
    """What comes in, until it is enough or too late."""
    deadline = time.monotonic() + timeout_s
    while not done() and time.monotonic() < deadline:
        event = crew.next(0.05)
        if event is None:
            continue
        member, message = event
        match message:
            case Pong(sent_ns, wall_ns, monotonic_ns):
                member.clock.note(sent_ns, wall_ns, monotonic_ns)
            case Gone():
                member.lost = member.lost or preflight.why_gone(member)
        yield member, message


def rounds(members: Iterable[Member]) -> Iterator[list[tuple[Member, Member]]]:
    """All pairs, as a tournament: in each round everyone meets one other at most."""
    ring: list[Member | None] = list(members)
    if len(ring) % 2:
        ring.append(None)
    half = len(ring) // 2
    for _ in range(len(ring) - 1):
        pairs = zip(ring[:half], reversed(ring[half:]), strict=True)
        yield [(a, b) for a, b in pairs if a is not None and b is not None]
        ring[1:] = [ring[-1], *ring[1:-1]]
