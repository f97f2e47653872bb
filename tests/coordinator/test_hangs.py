"""What is done with an attempt that hangs, decided by messages, rings and a clock that the test gives."""

import json
from pathlib import Path
from typing import Any

import pytest

from rollcall.coordinator.agents import Agent
from rollcall.coordinator.hangs import Action, Hangs
from rollcall.coordinator.run_folder import RunFolder
from rollcall.protocol.hosts import Host
from rollcall.protocol.messages import DumpStacks, Message, StacksDumped, Standstill
from rollcall.protocol.plan import OnHang, Plan, Program
from tests.report.rings import FakeOp, write

HUNG, MOVING = Standstill(True, True), Standstill(False, False)


class Hanging:
    """Two hosts with one rank each: rank 0 waits in a barrier, rank 1 is in no op."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, on_hang: OnHang) -> None:
        self.now_s, self.attempt, self.said, self.sent = 100.0, 0, list[str](), list[Message]()
        self.folder = RunFolder(folder, {"attempts": [], "outcome": "running"})
        hosts = (Host("a", 1), Host("b", 1))
        plan = Plan(Program("script", "train.py"), hosts, on_hang=on_hang, max_restarts=3, hang_after_s=10)
        self.hangs = Hangs(plan, self.folder, self.said.append, now=lambda: self.now_s)
        self.agents = [Agent(node, host) for node, host in enumerate(hosts)]
        for agent in self.agents:
            agent.connection = object()  # type: ignore[assignment]  # it is only asked whether there is one
            monkeypatch.setattr(agent, "send", self.sent.append)

    def tick(self, restarts_left: int = 3) -> Action:
        return self.hangs.tick(self.attempt, self.agents, restarts_left)

    def hang(self, restarts_left: int = 3, barriers: int = 1, is_idle: bool = True) -> Action:
        """All hosts stand still, and send the stacks of their ranks."""
        done = [FakeOp("barrier", number, number, number + 0.5) for number in range(1, barriers)]
        write(self.folder.path, [[*done, FakeOp("barrier", barriers, 90)], done], attempt=self.attempt)
        stack = 'Current thread 0x1 (most recent call first):\n  File "/nowhere/train.py", line 3 in load\n\n'
        (self.folder.path / "rings" / f"attempt-{self.attempt}" / "rank-1.stacks").write_text(stack)
        self.folder.note_attempt(self.attempt, world_size=2, idle={"1": is_idle})
        for agent in self.agents:
            self.hangs.note(agent, HUNG)
        assert self.tick(restarts_left) == ""
        return self.send_stacks(restarts_left)

    def send_stacks(self, restarts_left: int = 3) -> Action:
        for agent in self.agents:
            self.hangs.note_stacks(agent, StacksDumped())
        return self.tick(restarts_left)

    def begin_next(self) -> None:
        self.attempt += 1
        self.hangs.begin_attempt()

    def facts(self) -> list[dict[str, Any]]:
        return list(json.loads((self.folder.path / "run.json").read_text())["attempts"])


@pytest.fixture
def hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Hanging:
    return Hanging(tmp_path, monkeypatch, getattr(request, "param", "restart"))


@pytest.mark.parametrize(
    ("hanging", "action"), [("report", ""), ("stop", "stop"), ("restart", "restart")], indirect=["hanging"]
)
def test_a_hang_is_explained_and_acted_on(hanging: Hanging, action: Action, capsys: pytest.CaptureFixture[str]) -> None:
    """Its verdict is kept with the attempt, whatever is done then."""
    assert hanging.hang() == action
    assert "verdict: busy-rank — look at rank 1" in capsys.readouterr().err
    (attempt,) = hanging.facts()
    assert attempt["hung"] is True
    assert (attempt["verdict"]["kind"], attempt["verdict"]["ranks"]) == ("busy-rank", [1])


def test_ranks_that_all_wait_for_locks_hang(hanging: Hanging, capsys: pytest.CaptureFixture[str]) -> None:
    """Though none of them is in an op; not if those of one host may go on."""
    asleep = Standstill(is_still=True, is_waiting=False, is_asleep=True)
    write(hanging.folder.path, [[FakeOp("barrier", 1, 1, 2)]] * 2)
    stack = 'Current thread 0x1 (most recent call first):\n  File "/nowhere/train.py", line 3 in load\n\n'
    for rank in range(2):
        (hanging.folder.path / "rings" / "attempt-0" / f"rank-{rank}.stacks").write_text(stack)
    hanging.folder.note_attempt(0, world_size=2, idle={"0": True, "1": True})
    hanging.hangs.note(hanging.agents[0], asleep)
    hanging.hangs.note(hanging.agents[1], Standstill(is_still=True, is_waiting=False))
    assert (hanging.tick(), hanging.sent) == ("", [])
    hanging.hangs.note(hanging.agents[1], asleep)
    assert hanging.tick() == ""
    assert hanging.send_stacks() == "restart"
    assert "verdict: busy-rank — look at ranks 0-1" in capsys.readouterr().err
    assert hanging.facts()[0]["asleep"] is True


def test_hosts_that_have_no_rank_in_the_attempt_are_not_asked(hanging: Hanging) -> None:
    """A spare host neither moves nor stands still."""
    spare = hanging.agents.pop()
    hanging.hangs.note(hanging.agents[0], HUNG)
    hanging.tick()
    assert [type(message) for message in hanging.sent] == [DumpStacks]
    assert spare.node == 1


def test_the_same_hang_at_the_same_op_ends_the_run(hanging: Hanging) -> None:
    assert hanging.hang() == "restart"
    hanging.begin_next()
    assert hanging.hang() == "stop"
    assert hanging.said == ["attempt 1 hangs as attempt 0 did, at the same op: the run ends, no restart"]
    assert hanging.hangs.is_explained


def test_a_hang_at_a_later_call_is_another_one(hanging: Hanging) -> None:
    """Though it is on the same line."""
    assert hanging.hang() == "restart"
    hanging.begin_next()
    assert hanging.hang(barriers=5) == "restart"
    assert [attempt["verdict"]["call"]["seq"] for attempt in hanging.facts()] == [1, 5]


def test_without_a_restart_left_a_hang_ends_the_run(hanging: Hanging) -> None:
    assert hanging.hang(restarts_left=0) == "stop"
    assert "no restart is left of --max-restarts 3" in hanging.said[0]


def test_a_rank_that_computes_is_looked_at_again(hanging: Hanging, capsys: pytest.CaptureFixture[str]) -> None:
    """It is no hang; but the rank may hang later, without any op in between."""
    assert hanging.hang(is_idle=False) == ""
    assert "verdict" not in hanging.facts()[0]
    capsys.readouterr()
    hanging.now_s += 9
    assert hanging.tick() == hanging.tick() == ""
    assert len(hanging.sent) == 2
    hanging.now_s += 1
    hanging.tick()
    assert hanging.send_stacks() == ""
    assert (len(hanging.sent), capsys.readouterr().err) == (4, "")
    hanging.folder.note_attempt(0, idle={"1": True})
    hanging.now_s += 10
    hanging.tick()
    assert hanging.send_stacks() == "restart"


def test_ranks_that_move_on_do_not_hang(hanging: Hanging) -> None:
    hanging.hang(is_idle=False)
    hanging.hangs.note(hanging.agents[0], MOVING)
    assert hanging.tick() == ""
    assert hanging.facts()[0]["hung"] is False


def test_a_host_that_sends_no_stacks_is_not_waited_for_for_ever(hanging: Hanging) -> None:
    for agent in hanging.agents:
        hanging.hangs.note(agent, HUNG)
    hanging.tick()
    assert hanging.tick() == ""
    hanging.now_s += 15
    assert hanging.tick() == "restart"
