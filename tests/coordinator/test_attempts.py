"""The phases of a run, decided by messages and a clock that the test gives."""

import io
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from rollcall.coordinator.agents import Agent
from rollcall.coordinator.attempts import Attempts, Phase
from rollcall.coordinator.heartbeats import Heartbeats
from rollcall.errors import UsageError, WorldError
from rollcall.protocol.hosts import Host
from rollcall.protocol.messages import (
    AttemptOver,
    Begin,
    Cancel,
    ClosePort,
    Finish,
    HostInfo,
    MasterReached,
    Message,
    OpenPort,
    Ping,
    PortOpened,
    Prepare,
    ReachMaster,
    Refused,
    Stop,
)
from rollcall.protocol.plan import LOOPBACK, ByHand, Plan, Program, Transport
from rollcall.protocol.timing import SETTLE_S, SILENCE_S
from rollcall.transport.connection import Connection

ADDRESS = "10.0.0.1"


@dataclass(eq=False)
class SentTo(Agent):
    """An agent that keeps what it is sent; pings aside, which every agent gets all the time."""

    sent: list[Message] = field(default_factory=list)

    def send(self, message: Message) -> None:
        if not isinstance(message, Ping):
            self.sent.append(message)


class Sent:
    """All agents of a run, without processes: `started` says which were asked for, and how often."""

    def __init__(self, hosts: Iterable[Host], needs_heartbeat: bool) -> None:
        self.all = [SentTo(node, host) for node, host in enumerate(hosts)]
        self.started: list[str] = []
        self.killed = False
        self._needs_heartbeat = needs_heartbeat

    def start(self, agents: Iterable[SentTo]) -> None:
        for agent in agents:
            self.started.append(agent.name)
            agent.connection = Connection(io.BytesIO(), io.BytesIO(), needs_heartbeat=self._needs_heartbeat)
            agent.lost, agent.info, agent.is_prepared, agent.is_ready, agent.is_cut_off = "", None, False, False, False

    def send_all(self, message: Message) -> None:
        for agent in self.all:
            agent.send(message)

    def lose(self, agent: SentTo, why: str) -> None:
        agent.lost = why

    def stop_starting(self) -> None:
        pass

    def kill(self) -> None:
        self.killed = True


class Run:
    """Attempts under test: who listens to them, and the clock."""

    def __init__(self, *names: str, slots: int = 2, **plan: Any) -> None:
        self.now_s = 100.0
        self.said: list[str] = []
        self.lost: list[str] = []
        self.over: list[tuple[int, bool]] = []
        self.began = 0
        kind = "ssh" if len(names) > 1 else "local"
        transport = plan.pop("transport", Transport(kind))
        hosts = tuple(Host(name, slots) for name in names)
        self.plan = Plan(Program("script", "train.py"), hosts, transport, **plan)
        self.agents = Sent(hosts, needs_heartbeat=kind == "ssh")
        self.heartbeats = Heartbeats(self.agents, kind == "local", self.say, now=lambda: self.now_s)  # type: ignore[arg-type]
        self.attempts = Attempts(self.plan, self.agents, "/runs/1", self, now=lambda: self.now_s)  # type: ignore[arg-type]

    def say(self, text: str) -> None:
        self.said.append(text)

    def attempt_began(self, hosts: dict[str, dict[str, Any]]) -> None:
        self.began += 1

    def host_lost(self, agent: Agent) -> None:
        self.lost.append(agent.name)

    def attempt_over(self, attempt: int, is_followed: bool) -> None:
        self.over.append((attempt, is_followed))

    def __getitem__(self, name: str) -> SentTo:
        return next(agent for agent in self.agents.all if agent.name == name)

    def tick(self, seconds: float = 0.0) -> Phase:
        """Let time go by, in steps that a busy launcher would make."""
        while seconds > 1:
            self.now_s += 1
            self._tick()
            seconds -= 1
        self.now_s += seconds
        self._tick()
        return self.attempts.phase

    def _tick(self) -> None:
        self.heartbeats.tick()
        self.attempts.tick()

    def answer(self, *names: str, torch: str = "2.13.0") -> Phase:
        for name in names:
            self[name].note(HostInfo(name, "3.11.7", torch, "0.1.0", cpus=8, gpus=0))
            self[name].heard_s = self.now_s
        return self.tick()

    def find_master(self, master: str, *others: str) -> Phase:
        """The master opens its port, and all others reach it."""
        self.attempts.note_opened(self[master], PortOpened(0, 4711, {ADDRESS: "eth0"}))
        self.tick()
        for name in others:
            reached = MasterReached(0, {ADDRESS: (f"10.0.0.{name}", "eth1")}, {})
            self.attempts.note_reached(self[name], reached)
        return self.tick()

    def be_ready(self, *names: str) -> Phase:
        for name in names:
            self[name].is_ready = True
        return self.tick()

    def disconnect(self, name: str) -> None:
        self[name].connection = None
        self.attempts.note_disconnected(self[name])

    def fail_rank(self, *ended_on: str) -> Phase:
        """A rank fails, and all ranks are then ended on these hosts."""
        self.attempts.note_rank_failed()
        self.tick(SETTLE_S)
        for name in ended_on:
            self.attempts.note_attempt_over(self[name], AttemptOver(self.attempts.attempt))
        return self.tick()


def running(*names: str, **plan: Any) -> Run:
    """A run whose ranks have just been started."""
    run = Run(*names, **plan)
    run.answer(*names)
    if len(names) > 1:
        run.find_master(*names)
    assert run.be_ready(*names) is Phase.RUNNING
    for agent in run.agents.all:
        agent.sent.clear()
    return run


def sent(agent: SentTo) -> list[str]:
    return [type(message).__name__ for message in agent.sent]


def test_one_host_is_prepared_as_soon_as_it_answers() -> None:
    """Nobody has to find its master."""
    run = Run("a")
    assert run.answer("a") is Phase.PREPARING
    assert sent(run["a"]) == ["Prepare"]


def test_one_host_gets_all_ranks_on_loopback() -> None:
    run = Run("a", slots=4)
    run.answer("a")
    assert run.be_ready("a") is Phase.RUNNING
    assert run["a"].sent[-1] == Begin(0, 0, 1, 0, 4, LOOPBACK, 0)


def test_no_rank_begins_before_all_hosts_are_ready() -> None:
    run = Run("a", "b")
    run.answer("a", "b")
    run.find_master("a", "b")
    assert run.be_ready("a") is Phase.PREPARING
    assert run.be_ready("b") is Phase.RUNNING


def test_several_hosts_look_for_the_master_before_they_are_prepared() -> None:
    run = Run("a", "b")
    assert run.answer("a") is Phase.GATHERING
    assert run.answer("b") is Phase.OPENING
    run.find_master("a", "b")
    assert sent(run["a"]) == ["OpenPort", "Prepare"]
    assert sent(run["b"]) == ["ReachMaster", "Prepare"]
    assert isinstance(run["a"].sent[0], OpenPort)
    assert isinstance(run["b"].sent[0], ReachMaster)


def test_ranks_follow_the_order_of_the_hosts() -> None:
    """Whoever answers first; and each host gets the interface of its route to the master."""
    run = Run("a", "b", slots=3)
    run.answer("b", "a")
    run.find_master("a", "b")
    run.be_ready("b", "a")
    assert run["a"].sent[-1] == Begin(0, 0, 2, 0, 6, ADDRESS, 4711, "eth0")
    assert run["b"].sent[-1] == Begin(0, 1, 2, 3, 6, ADDRESS, 4711, "eth1")


def test_other_hosts_get_no_environment_of_the_launcher() -> None:
    """What is to be set there has gone another way: a token does not belong into a plan."""
    run = Run("a", "b", transport=Transport("ssh", env=(("TOKEN", "x"),)))
    run.answer("a", "b")
    run.find_master("a", "b")
    prepare = run["b"].sent[-1]
    assert isinstance(prepare, Prepare)
    assert "TOKEN" not in str(prepare)
    assert prepare.hosts == 2


def test_all_done_is_the_end() -> None:
    run = running("a", "b")
    run.attempts.note_done(run["a"])
    assert run.tick() is Phase.RUNNING
    run.attempts.note_done(run["b"])
    assert run.tick() is Phase.FINISHING
    assert sent(run["a"]) == sent(run["b"]) == ["Finish"]
    assert run.attempts.failed is None


def test_a_failed_rank_ends_the_attempt_on_all_hosts_after_a_moment() -> None:
    """Ranks that fail meanwhile are heard, too."""
    run = running("a", "b")
    run.attempts.note_rank_failed()
    assert run.tick(SETTLE_S / 2) is Phase.RUNNING
    assert run.tick(SETTLE_S) is Phase.ENDING
    assert run["a"].sent == run["b"].sent == [Cancel(0)]


def test_without_restarts_a_failed_attempt_is_the_last() -> None:
    run = running("a")
    assert run.fail_rank("a") is Phase.FINISHING
    assert run.over == [(0, False)]
    assert sent(run["a"]) == ["Cancel", "Finish"]


def test_restarts_are_counted() -> None:
    """Two restarts are three attempts, on one host as on several."""
    run = running("a", max_restarts=2)
    for attempt in (0, 1):
        run.fail_rank("a")
        assert (attempt, True) in run.over
        assert run.attempts.phase is Phase.GATHERING
        run.tick()
        assert run.tick() is Phase.RUNNING
        assert run.attempts.attempt == attempt + 1
    assert run.fail_rank("a") is Phase.FINISHING
    assert run.over[-1] == (2, False)


def test_the_next_attempt_waits_until_all_ranks_are_gone() -> None:
    run = running("a", "b", max_restarts=1)
    assert run.fail_rank("a") is Phase.ENDING
    run.attempts.note_attempt_over(run["b"], AttemptOver(0))
    assert run.tick() is Phase.GATHERING


def test_a_host_that_is_prepared_keeps_its_port_for_the_next_attempt() -> None:
    """It is asked to stop answering there before ranks connect."""
    run = running("a", "b", max_restarts=1)
    run.fail_rank("a", "b")
    run.tick()
    run["a"].sent.clear()
    run.find_master("a", "b")
    assert sent(run["a"]) == ["ClosePort"]
    assert isinstance(run["a"].sent[0], ClosePort)
    assert run.tick() is Phase.PREPARING
    run.attempts.note_closed()
    assert run.tick() is Phase.RUNNING


def test_a_lost_host_ends_the_attempt() -> None:
    run = running("a", "b")
    run.disconnect("b")
    assert run.lost == ["b"]
    assert run["a"].sent == [Cancel(0)]
    run.attempts.note_attempt_over(run["a"], AttemptOver(0))
    assert run.tick() is Phase.FINISHING
    assert run.over == [(0, False)]


def test_with_enough_hosts_left_a_lost_one_costs_no_restart() -> None:
    run = running("a", "b", "c", transport=Transport("ssh", min_hosts=2))
    run.disconnect("c")
    for name in ("a", "b"):
        run.attempts.note_attempt_over(run[name], AttemptOver(0))
    assert run.tick() is Phase.GATHERING
    assert run.over == [(0, True)]
    assert run.agents.started.count("c") == 2
    run[("c")].lost = "did not come back"
    assert run.tick() is Phase.OPENING
    assert "continuing without c: did not come back" in run.said


def with_spare(**transport: Any) -> Run:
    """Hosts a and b have ranks, c is a spare."""
    run = Run("a", "b", "c", transport=Transport("ssh", spares=1, **transport))
    run.answer("a", "b", "c")
    run.find_master("a", "b")
    assert run.be_ready("a", "b", "c") is Phase.RUNNING
    return run


def lose(run: Run, name: str) -> Phase:
    """Its agent is gone, the ranks of the others are ended; and it is asked, but does not answer."""
    run.disconnect(name)
    for agent in run.attempts._taking_part:
        run.attempts.note_attempt_over(agent, AttemptOver(run.attempts.attempt))
    run.tick()
    return run.tick(0.1)


def begin_again(run: Run, *names: str) -> Phase:
    run.find_master(*names)
    run.attempts.note_closed()
    return run.tick()


def test_a_spare_is_prepared_and_gets_no_rank() -> None:
    run = with_spare()
    assert sent(run["c"]) == ["Prepare"]
    assert run["b"].sent[-1] == Begin(0, 1, 2, 2, 4, ADDRESS, 4711, "eth1")


def test_a_spare_takes_the_place_of_a_lost_host() -> None:
    """The world is as large as before, the others keep their ranks, no restart is used, and nobody is waited for."""
    run = with_spare()
    assert lose(run, "b") is Phase.OPENING
    assert "c takes the place of b" in run.said
    assert begin_again(run, "a", "c") is Phase.RUNNING
    assert run["a"].sent[-1] == Begin(1, 0, 2, 0, 4, ADDRESS, 4711, "eth0")
    assert run["c"].sent[-1] == Begin(1, 1, 2, 2, 4, ADDRESS, 4711, "eth1")


def test_a_spare_may_take_the_place_of_the_master() -> None:
    run = with_spare()
    lose(run, "a")
    assert begin_again(run, "c", "b") is Phase.RUNNING
    assert run["c"].sent[-1] == Begin(1, 0, 2, 0, 4, ADDRESS, 4711, "eth0")
    assert run["b"].sent[-1] == Begin(1, 1, 2, 2, 4, ADDRESS, 4711, "eth1")


def test_a_host_that_comes_back_becomes_a_spare() -> None:
    run = with_spare()
    lose(run, "b")
    begin_again(run, "a", "c")
    run.answer("b")
    assert run.said[-1] == "b is back, and is a spare now"
    run.be_ready("b")
    assert lose(run, "c") is Phase.OPENING
    assert [agent.name for agent in run.attempts._taking_part] == ["a", "b"]


def test_without_a_spare_left_the_run_ends_and_says_so() -> None:
    run = with_spare()
    run.disconnect("c")
    assert run.said[-1].startswith("c is no longer a spare: ")
    assert lose(run, "b") is Phase.FINISHING
    assert run.said[-1] == "no spare is left to take the place of b: the run ends"


def test_without_a_spare_left_min_hosts_decides() -> None:
    run = with_spare(min_hosts=1)
    run.disconnect("c")
    lose(run, "b")
    run["b"].lost = run["c"].lost = "is away"
    assert run.tick(0.1) is Phase.PREPARING
    assert "continuing without b: is away, and no spare is left" in run.said


def test_a_host_that_never_comes_is_replaced_before_the_first_attempt() -> None:
    run = Run("a", "b", "c", transport=Transport("ssh", spares=1))
    run.answer("a", "c")
    run["b"].lost = "Connection refused"
    assert run.tick() is Phase.OPENING
    assert run.said == ["c takes the place of b: Connection refused"]


def test_a_killed_agent_of_one_host_is_started_again_if_restarts_are_left() -> None:
    run = running("a", max_restarts=1)
    run.disconnect("a")
    assert run.tick() is Phase.GATHERING
    assert run.agents.started == ["a", "a"]
    assert run.answer("a") is Phase.PREPARING


def test_silence_over_a_network_loses_the_host() -> None:
    run = running("a", "b")
    for _ in range(int(SILENCE_S) + 1):
        run["a"].heard_s = run.now_s
        run.tick(1)
    assert run["b"].is_cut_off
    assert "was not heard of" in run["b"].lost
    assert not run["a"].lost


def test_silence_of_this_machines_own_agent_is_no_loss() -> None:
    """Its pipe breaks when it dies: until then it may be busy for as long as it likes."""
    run = running("a")
    run.tick(3 * SILENCE_S)
    assert not run["a"].lost


def test_a_launcher_that_was_stopped_blames_no_host() -> None:
    run = running("a", "b")
    run.now_s += 60  # Ctrl-Z
    run.tick()
    assert run["a"].lost == run["b"].lost == ""
    assert "rollcall here was stopped for 60 s" in run.said[0]


def test_a_launcher_that_was_stopped_says_so_also_where_the_connections_have_ended_meanwhile() -> None:
    run = running("a", "b")
    run.now_s += 60
    for agent in run.agents.all:  # noticed by the threads that read, before the launcher's own goes on
        agent.connection = None
    run.tick()
    assert "rollcall here was stopped for 60 s" in run.said[0]


def test_hosts_that_do_not_answer_are_named_when_the_time_is_over() -> None:
    run = Run("a", "b", join_timeout_s=20)
    run.answer("a")
    run.tick(21)
    assert isinstance(run.attempts.failed, WorldError)
    assert "1 of 2 hosts did not answer — b: not yet reached" in str(run.attempts.failed)


def test_what_is_waited_for_is_told_after_five_seconds_and_then_seldom() -> None:
    run = Run("a", "b")
    run.answer("a")
    run.tick(4)
    assert run.said == []
    run.tick(26)
    assert run.said == ["waiting: 1 of 2 hosts did not answer — b: not yet reached"]


def test_versions_that_differ_are_refused_before_a_rank_starts() -> None:
    run = Run("a", "b")
    run.answer("a")
    run.answer("b", torch="2.11.0")
    assert isinstance(run.attempts.failed, UsageError)
    assert "torch is 2.13.0 on a, 2.11.0 on b" in str(run.attempts.failed)


def test_a_host_that_refuses_ends_the_run_with_its_sentence_and_code() -> None:
    run = Run("a", "b")
    run.answer("a", "b")
    run.attempts.note_refused(run["a"], Refused("port 1 is in use", 2))
    assert isinstance(run.attempts.failed, UsageError)
    assert str(run.attempts.failed) == "a: port 1 is in use"
    assert run.agents.killed


def test_one_host_needs_no_name_in_its_sentence() -> None:
    run = Run("this host")
    run.attempts.note_refused(run["this host"], Refused("port 1 is in use", 2))
    assert str(run.attempts.failed) == "port 1 is in use"


def test_a_stop_before_ranks_run_ends_the_agents_at_once() -> None:
    run = Run("a")
    run.answer("a")
    run.attempts.stop(Stop(2))
    assert run.agents.killed


def test_a_stop_before_any_agent_is_connected_ends_the_run() -> None:
    """It would connect later, and wait for a message that was sent before."""
    run = Run("a")
    run["a"].connection = None
    run.attempts.stop(Stop(2))
    assert run.agents.killed


def test_after_a_stop_no_attempt_begins() -> None:
    run = running("a", max_restarts=3)
    run.attempts.stop(Stop(15))
    assert run.fail_rank("a") is Phase.RUNNING
    assert run.over == []
    assert not run.agents.killed


def test_started_by_hand_a_failure_elsewhere_counts_as_a_restart_here() -> None:
    run = running("a", by_hand=ByHand(2, 0), master_addr=ADDRESS, max_restarts=1)
    run.attempts.note_attempt_over(run["a"], AttemptOver(0, "rank 3 on b exited with code 1"))
    assert run.tick() is Phase.GATHERING
    run.tick()
    assert run.tick() is Phase.RUNNING
    run.attempts.note_attempt_over(run["a"], AttemptOver(1, "rank 3 on b exited with code 1"))
    assert run.tick() is Phase.FINISHING
    assert str(run.attempts.failed) == "rank 3 on b exited with code 1"


@pytest.mark.parametrize("phase", ["gathering", "preparing"])
def test_a_host_that_goes_before_its_ranks_run_is_waited_for_again(phase: str) -> None:
    run = Run("a", "b", transport=Transport("ssh", min_hosts=1))
    run.answer("a", "b")
    if phase == "preparing":
        run.find_master("a", "b")
    run.disconnect("b")
    assert run.attempts.phase is Phase.GATHERING
    assert run.tick() is Phase.PREPARING
    assert run.be_ready("a") is Phase.RUNNING
    assert run["a"].sent[-1] == Begin(0, 0, 1, 0, 2, LOOPBACK, 0)


def test_the_end_is_told_to_all() -> None:
    run = running("a", "b")
    run.attempts.fail(WorldError("enough"))
    run.attempts.fail(WorldError("later"))
    assert str(run.attempts.failed) == "enough"
    assert isinstance(run["a"].sent[-1], Finish)
