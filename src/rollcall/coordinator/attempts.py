"""Leading several hosts: the roll call, then one attempt after the other.

    all present → versions agree → the master opens a door → all others reach it → begin
    … → all done: dismiss   or   a rank failed, a host was lost: end the attempt, begin the next or give up

The launcher's loop hands over every message and calls `tick`; nothing here waits.
"""

import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from enum import Enum, auto
from typing import Any

from rollcall.agent.heartbeat import PING_S, SILENCE_S
from rollcall.coordinator.agents import Crew, Gone, Member
from rollcall.coordinator.failure import SETTLE_S
from rollcall.coordinator.preflight import differences, missing, nearest_address, slots_of, why_gone
from rollcall.errors import RollcallError, UsageError, WorldError
from rollcall.protocol.messages import (
    AgentEnded,
    AttemptOver,
    Begin,
    Cancel,
    Close,
    Closed,
    Dismiss,
    Done,
    Ended,
    Message,
    Open,
    Opened,
    Order,
    Ping,
    Pong,
    Present,
    Ready,
    Refused,
    Stop,
    Tried,
    Try,
)
from rollcall.protocol.plan import Plan

_SETTLE_HOSTS_S = 12.0  # from the first host that failed to come until the others count as missing, too
_REJOIN_S = 3.0  # for an agent that was killed to come back before the next attempt begins without it
_NEEDED_S = 30.0  # the same where there can be no attempt without it
_TRY_AGAIN_S = 10.0  # a host that is lost is asked again so often whether it is back
_ASLEEP_S = 5.0
_TELL_AFTER_S, _TELL_EVERY_S = 5.0, 30.0


class Phase(Enum):
    """Where the run stands."""

    GATHERING = auto()
    OPENING = auto()
    TRYING = auto()
    PREPARING = auto()
    RUNNING = auto()
    ENDING = auto()  # the attempt has failed; its ranks are being ended
    LEAVING = auto()


class Lead:
    """Decides for all hosts, and says what it decided: `begun` an attempt, `lost` a host, `attempt_over`."""

    def __init__(
        self,
        plan: Plan,
        crew: Crew,
        folder: str,
        tell: Callable[[str], None],
        begun: Callable[[dict[str, dict[str, Any]]], None],
        lost: Callable[[Member], None],
        attempt_over: Callable[[int, bool], None],
    ) -> None:
        assert plan.reach is not None
        self._plan, self._crew, self._folder = plan, crew, folder
        self._tell, self._begun, self._lost, self._attempt_over = tell, begun, lost, attempt_over
        self._least = plan.reach.min_hosts or len(plan.hosts)
        self._allow_mixed, self._ranks = plan.reach.allow_mixed, plan.reach.ranks
        self.attempt = plan.first_attempt
        self.failed: RollcallError | None = None
        self.phase = Phase.GATHERING
        self._restarts_left = plan.max_restarts
        self._first_missing_s: float | None = None
        self._patience_s = _SETTLE_HOSTS_S
        self._asked_again_s = 0.0
        self._pinged_s = 0.0
        self._ticked_s = time.monotonic()
        self._stopping = False
        self._wait_anew()
        self._crew.start(crew.members)
        self._reset()

    def _wait_anew(self) -> None:
        self._since_s = time.monotonic()
        self._told_s = self._since_s - _TELL_EVERY_S + _TELL_AFTER_S

    def _reset(self) -> None:
        self._taking_part: list[Member] = []
        self._token = secrets.token_hex(16)
        self._opened: Opened | None = None
        self._tried: dict[Member, Tried] = {}
        self._over: set[Member] = set()
        self._done: set[Member] = set()
        self._cancel_s: float | None = None
        self._rank_failed = False
        self._cancelled = False
        self._is_closed = False

    # What comes in.

    def handle(self, member: Member, message: Message) -> None:
        match message:
            case Present():
                member.send(Ping(time.monotonic_ns()))
            case Pong(sent_ns, wall_ns, monotonic_ns):
                member.clock.note(sent_ns, wall_ns, monotonic_ns)
                if member.clock.is_coarse:
                    member.send(Ping(time.monotonic_ns()))
            case Opened() if member is self._master:
                self._opened = message
            case Tried():
                self._tried[member] = message
            case Closed():
                self._is_closed = True
            case Ready(shared):
                member.ready, member.shared = True, shared
            case Ended() if message.exit_code != 0 and not message.asked:
                self._rank_failed = True
                self._cancel_s = self._cancel_s or time.monotonic() + SETTLE_S
            case Done():
                self._done.add(member)
            case AttemptOver():
                self._over.add(member)
            case Refused(text, exit_code):
                self._give_up(_coded(f"{member.name}: {text}", exit_code))
            case AgentEnded(exit_code):
                member.agent_code = exit_code
            case Gone():
                self._note_gone(member)

    @property
    def _master(self) -> Member | None:
        return self._taking_part[0] if self._taking_part else None

    def _note_gone(self, member: Member) -> None:
        if self.phase is Phase.LEAVING or self._stopping:
            return
        if not member.lost:
            member.lost = why_gone(member)
        if member not in self._taking_part:
            return
        if self.phase in (Phase.RUNNING, Phase.ENDING):
            self._lost(member)
            self._cancel()
        else:  # the roll was called, but it has left before the attempt began
            self._first_missing_s = time.monotonic()
            self.phase = Phase.GATHERING

    def stop(self, message: Stop) -> None:
        """The user wants an end: agents that have no ranks yet have nothing to end."""
        self._stopping = True
        self._crew.send_all(message)
        if not all(member.ready for member in self._crew.members if member.is_up):
            self._crew.kill()

    # What is due.

    def tick(self) -> None:
        self._notice_own_sleep()
        self._ping()
        self._notice_silence()
        if self._stopping or self.phase is Phase.LEAVING:
            return
        step = {
            Phase.GATHERING: self._while_gathering,
            Phase.OPENING: self._while_opening,
            Phase.TRYING: self._while_trying,
            Phase.PREPARING: self._while_preparing,
            Phase.RUNNING: self._while_running,
            Phase.ENDING: self._while_ending,
        }[self.phase]
        try:
            step()
        except RollcallError as error:
            self._give_up(error)

    def _ping(self) -> None:
        now = time.monotonic()
        if now - self._pinged_s >= PING_S:
            self._pinged_s = now
            for member in self._crew.members:
                if member.present is not None and (member.ready or not member.ordered):
                    member.send(Ping(time.monotonic_ns()))

    def _notice_own_sleep(self) -> None:
        """After Ctrl-Z, or on a laptop that slept: then it was not the hosts that were silent."""
        now = time.monotonic()
        slept_s, self._ticked_s = now - self._ticked_s, now
        if slept_s > _ASLEEP_S:
            self._tell(f"rollcall here was stopped for {slept_s:.0f} s; hosts end their ranks after {SILENCE_S:g} s")
            for member in self._crew.members:
                member.heard_s = now

    def _notice_silence(self) -> None:
        now = time.monotonic()
        for member in self._crew.members:
            if member.ready and member.is_up and now - member.heard_s > SILENCE_S:
                member.cut_off = True
                self._crew.lose(member, f"was not heard of for {SILENCE_S:g} s: its network is cut, or it hangs")

    def _while_gathering(self) -> None:
        """Until all hosts have answered; or enough of them, when the others will not."""
        members = self._crew.members
        here = [member for member in members if member.present is not None and member.is_up]
        if len(here) == len(members) or (len(here) >= self._least and self._others_settled(here)):
            self._set_out(here)
            return
        gone = [member for member in members if member.lost]
        if gone and self._first_missing_s is None:
            self._first_missing_s = time.monotonic()
        if len(members) - len(gone) < self._least and self._others_settled(here):
            raise WorldError(missing(members, self._plan))
        waited_s = time.monotonic() - self._since_s
        if waited_s > self._plan.join_timeout_s:
            raise WorldError(f"after {waited_s:.0f} s {missing(members, self._plan)}")
        if time.monotonic() - self._told_s > _TELL_EVERY_S:
            self._told_s = time.monotonic()
            self._tell(f"waiting: {missing(members, self._plan)}")

    def _others_settled(self, here: list[Member]) -> bool:
        """Whether those that are not here will not come in time any more."""
        if all(member.lost for member in self._crew.members if member not in here):
            return True
        return self._first_missing_s is not None and time.monotonic() - self._first_missing_s > self._patience_s

    def _set_out(self, members: list[Member]) -> None:
        if not self._allow_mixed and (text := differences(members)):
            raise UsageError(text)
        for member in members:
            member.host = replace(member.host, slots=slots_of(member, self._ranks))
        for member in self._crew.members:
            if member not in members:
                self._tell(f"going on without {member.name}: {member.lost or member.stage}")
        self._taking_part = members
        self._token = secrets.token_hex(16)
        self._opened, self._tried = None, {}
        members[0].send(Open(self.attempt, self._plan.master_port, self._token))
        self.phase = Phase.OPENING

    def _while_opening(self) -> None:
        if self._opened is None:
            return
        for member in self._taking_part[1:]:
            member.send(Try(self.attempt, self._addresses(), self._opened.port, self._token))
        self.phase = Phase.TRYING

    def _addresses(self) -> list[str]:
        """Where the master may be found: as the user says, or as it says of itself."""
        if self._plan.master_addr:
            return [self._plan.master_addr]
        assert self._opened is not None
        known = self._taking_part[0].host.address
        return list(dict.fromkeys([*([known] if known else []), *self._opened.addresses]))

    def _while_trying(self) -> None:
        if len(self._tried) < len(self._taking_part) - 1:
            return
        self._address = nearest_address(self._taking_part[0], self._addresses(), self._port, self._tried)
        master = self._taking_part[0]
        self._is_closed = not master.ordered  # with its order a keeper closes the door by itself
        if master.ordered:
            master.send(Close())
        for member in self._taking_part:
            self._order(member)
        self.phase = Phase.PREPARING

    @property
    def _port(self) -> int:
        assert self._opened is not None
        return self._opened.port

    def _order(self, member: Member) -> None:
        if not member.ordered:
            member.ordered = True
            member.stage = "importing torch"
            member.send(Order(self._plan.on(member.host).to_dict(), self._folder, -1))

    def _while_preparing(self) -> None:
        if not self._is_closed or not all(member.ready for member in self._taking_part):
            return
        world_size = sum(member.host.slots for member in self._taking_part)
        first_rank = 0
        for node_rank, member in enumerate(self._taking_part):
            member.first_rank, member.stage = first_rank, "running"
            member.send(
                Begin(
                    self.attempt,
                    node_rank,
                    len(self._taking_part),
                    first_rank,
                    world_size,
                    self._address,
                    self._port,
                    self._plan.interface or self._interface(member),
                )
            )
            first_rank += member.host.slots
        self.phase = Phase.RUNNING
        self._begun(self._facts())

    def _facts(self) -> dict[str, dict[str, Any]]:
        """What the roll call found on each host that takes part, and its clocks, for the run's folder."""
        return {
            member.name: {
                **asdict(member.present or Present("", "", "", "", 0, 0)),
                "slots": member.host.slots,
                "address": self._tried[member].own[self._address][0] if member in self._tried else self._address,
                "interface": self._interface(member),
                "clock_offset_ns": member.clock.offset_ns,
                "clock_error_ns": member.clock.error_ns,
                "clock_readings": member.clock.readings,
            }
            for member in self._taking_part
        }

    def _interface(self, member: Member) -> str | None:
        if member in self._tried:
            return self._tried[member].own[self._address][1] or None
        assert self._opened is not None
        return self._opened.addresses.get(self._address)

    def _while_running(self) -> None:
        if self._done.issuperset(self._taking_part):
            self._leave()
        elif self._cancel_s is not None and time.monotonic() >= self._cancel_s:
            self._cancel()
        elif self._least < len(self._crew.members):
            self._ask_the_lost()

    def _ask_the_lost(self) -> None:
        """A host that is back gets its order now, and joins the next attempt."""
        lost = [member for member in self._crew.members if member.lost and member not in self._taking_part]
        if lost and time.monotonic() - self._asked_again_s > _TRY_AGAIN_S:
            self._asked_again_s = time.monotonic()
            self._crew.start(lost)
        for member in self._crew.members:
            if member.present is not None and member.is_up and not member.ordered:
                self._tell(f"{member.name} is back, and joins the next attempt")
                self._order(member)

    def _cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            for member in self._taking_part:
                member.send(Cancel(self.attempt))
        self.phase = Phase.ENDING

    def _while_ending(self) -> None:
        """Until no rank of the attempt is left on any host: then the next one, if there is to be one."""
        if not all(member in self._over or not member.is_up for member in self._taking_part):
            return
        lost = [member for member in self._taking_part if not member.is_up]
        left = len(self._taking_part) - len(lost)
        again = self._restarts_left > 0 if self._rank_failed and not lost else left >= self._least
        again = again or (bool(lost) and self._restarts_left > 0)
        if not again:
            self._attempt_over(self.attempt, False)
            self._leave()
            return
        if not lost or left < self._least:
            self._restarts_left -= 1
        self._attempt_over(self.attempt, True)
        self.attempt += 1
        cut_off = any(member.cut_off for member in lost)
        self._patience_s = _NEEDED_S if left < self._least else 0.0 if cut_off else _REJOIN_S
        self._gather()

    def _gather(self) -> None:
        """Call the roll again. Those that are lost may come back."""
        self._reset()
        self.phase = Phase.GATHERING
        self._wait_anew()
        self._first_missing_s = self._asked_again_s = self._since_s
        self._crew.start([member for member in self._crew.members if not member.is_up])

    def _leave(self) -> None:
        self.phase = Phase.LEAVING
        self._crew.await_no_more()
        self._crew.send_all(Dismiss())

    def _give_up(self, error: RollcallError) -> None:
        if self.failed is None:
            self.failed = error
        self.phase = Phase.LEAVING
        self._crew.send_all(Dismiss())
        if not all(member.ready for member in self._crew.members if member.is_up):
            self._crew.kill()


def _coded(text: str, exit_code: int) -> RollcallError:
    return UsageError(text) if exit_code == UsageError.exit_code else WorldError(text)
