"""Hosts that were started by hand, each with a launcher of its own: what they tell one another when the run hangs."""

import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rollcall import find_free_port
from rollcall.agent.dispatcher import Dispatcher
from rollcall.agent.host_questions import HostQuestions
from rollcall.agent.monitoring import hang_report
from rollcall.agent.monitoring.hang_report import HangReport
from rollcall.agent.rendezvous.by_hand import ByHandRendezvous
from rollcall.protocol.channel import Channel
from rollcall.protocol.messages import Begin, Standstill
from rollcall.protocol.plan import LOOPBACK, ByHand, Host, Plan, Program
from rollcall.record import ring_format
from rollcall.record.ring import Ring
from tests.rollcall_command import until

MOVING, COMPUTING, WAITING = Standstill(False, False), Standstill(True, False), Standstill(True, True)


@pytest.fixture
def hosts() -> list[ByHandRendezvous]:
    """Two, in their first attempt."""
    port = find_free_port()

    def join(node: int) -> ByHandRendezvous:
        plan = Plan(Program("script", "train.py"), (Host("h", 1),), master_addr=LOOPBACK, master_port=port)
        channel = Channel(io.BytesIO(), io.BytesIO())
        questions = HostQuestions(channel)
        dispatcher = Dispatcher(questions)
        dispatcher.attempts.put(Begin(0, 0, 1, 0, 1, LOOPBACK, 0))
        host = ByHandRendezvous(channel, dispatcher, questions, plan, ByHand(nnodes=2, node_rank=node))
        host.next_rendezvous()
        return host

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(join, range(2)))


def test_a_run_hangs_when_all_hosts_stand_still(hosts: list[ByHandRendezvous]) -> None:
    """Where one moves, the other waits for it, however long that takes."""
    here, there = hosts
    assert here.standstill_of_all(WAITING) == MOVING  # the other has told nothing yet
    there.standstill_of_all(MOVING)
    assert here.standstill_of_all(WAITING) == MOVING
    assert until(lambda: there.standstill_of_all(COMPUTING) == WAITING)
    assert until(lambda: here.standstill_of_all(WAITING) == WAITING)
    there.standstill_of_all(MOVING)
    assert until(lambda: here.standstill_of_all(WAITING) == MOVING)


def test_hosts_tell_one_another_what_they_see(hosts: list[ByHandRendezvous]) -> None:
    """Each waits for the other, whose launcher notices the hang a moment later."""
    reports = [HangReport(f"host-{node}", "/runs/a", {str(node): True}, [], {}) for node in range(2)]
    with ThreadPoolExecutor(2) as pool:
        seen = list(pool.map(lambda host, report: host.reports_of_others(report), hosts, reports))
    assert seen == [[reports[1]], [reports[0]]]


def a_ring(folder: Path, rank: int, is_in_op: bool) -> Path:
    path = folder / "rings" / "attempt-0" / f"rank-{rank}.ring"
    ring = Ring(path, rank=rank, world_size=2, attempt=0, host="here", size_bytes=ring_format.RECORDS_AT + 4096)
    if is_in_op:
        ring.add(ring_format.OP["barrier"], group=1)
    return path


def test_a_host_sees_the_rings_of_another_on_a_disk_that_both_share(tmp_path: Path) -> None:
    """A ring of the same name, on a disk of its own, is another ring."""
    ring = a_ring(tmp_path, 1, is_in_op=False)
    report = hang_report.make(tmp_path, 0, {"1": False})
    assert (report.readable_rings(), report.computing) == ([str(ring)], [1])
    assert (list(hang_report.unread_recordings([report])), hang_report.computing_unrecorded([report])) == ([], [])
    ring.unlink()
    a_ring(tmp_path, 1, is_in_op=False)
    assert report.readable_rings() == []
    assert hang_report.computing_unrecorded([report]) == [1]
    assert list(hang_report.unread_recordings([report])) == [
        f"the recording of rank 1 is in {tmp_path} on {report.host}, which cannot be read here",
        f"rank 1 on {report.host} computes, so the run is left alone",
    ]


def test_a_rank_that_has_no_recording_yet_may_compute(tmp_path: Path) -> None:
    """A fresh interpreter that still imports torch: those that wait for it do not hang."""
    report = hang_report.make(tmp_path, 0, {"1": False})
    assert hang_report.computing_unrecorded([report]) == [1]
    assert list(hang_report.unread_recordings([report])) == [
        f"rank 1 on {report.host} computes, so the run is left alone"
    ]


def test_a_rank_in_an_op_does_not_compute(tmp_path: Path) -> None:
    """It may use the processor while it waits, as with nccl."""
    a_ring(tmp_path, 0, is_in_op=True)
    a_ring(tmp_path, 1, is_in_op=False)
    assert hang_report.make(tmp_path, 0, {"0": False, "1": True}).computing == []
