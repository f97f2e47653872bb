"""How agents agree on each attempt: led by a launcher, and among themselves by a store."""

import io
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from torch.distributed.elastic.rendezvous import RendezvousGracefulExitError

from rollcall.agent.dispatcher import Dispatcher
from rollcall.agent.host_questions import HostQuestions
from rollcall.agent.rendezvous.by_launcher import LauncherRendezvous
from rollcall.agent.rendezvous.store import StoreRendezvous
from rollcall.errors import UsageError, WorldError
from rollcall.ports import listen
from rollcall.protocol.channel import Channel
from rollcall.protocol.messages import (
    Begin,
    Cancel,
    Done,
    Finish,
    Message,
    Ping,
    Pong,
    Refused,
    Stop,
    UnknownMessage,
)
from rollcall.protocol.plan import LOOPBACK
from tests.rollcall_command import until


class Agent:
    """The parts of an agent that hear the launcher, and what they have sent to it."""

    def __init__(self, listener_fds: list[int] | None = None) -> None:
        self._out = io.BytesIO()
        channel = Channel(io.BytesIO(), self._out)
        questions = HostQuestions(channel, listener_fds)
        self.dispatcher = Dispatcher(questions)
        self.rendezvous = LauncherRendezvous(channel, self.dispatcher, questions)

    def sent(self) -> list[Message]:
        channel = Channel(io.BytesIO(self._out.getvalue()), io.BytesIO())
        return list(iter(channel.receive, None))


def begin(attempt: int = 0, node_rank: int = 0, nnodes: int = 1, port: int = 0) -> Begin:
    return Begin(attempt, node_rank, nnodes, 2 * node_rank, 2 * nnodes, LOOPBACK, port)


def test_an_attempt_begins_when_the_launcher_says_so() -> None:
    """Its place in the world is the launcher's; the master of one host takes any free port."""
    agent = Agent()
    agent.dispatcher.handle(begin())
    info = agent.rendezvous.next_rendezvous()
    assert (info.rank, info.world_size) == (0, 1)
    assert agent.rendezvous.place.master_port > 0
    with socket.create_connection((LOOPBACK, agent.rendezvous.place.master_port)):
        pass


def test_the_master_of_several_hosts_serves_at_the_port_that_they_tried() -> None:
    listener = listen(LOOPBACK, 0)
    port = listener.getsockname()[1]
    agent = Agent([listener.detach()])
    agent.dispatcher.handle(begin(nnodes=2, port=port))
    agent.rendezvous.next_rendezvous()
    with socket.create_connection((LOOPBACK, port)):
        pass


def test_one_host_after_an_attempt_with_more_takes_a_port_of_its_own() -> None:
    listener = listen(LOOPBACK, 0)
    reserved = listener.getsockname()[1]
    agent = Agent([listener.detach()])
    agent.dispatcher.handle(begin())
    agent.rendezvous.next_rendezvous()
    assert agent.rendezvous.place.master_port != reserved


def test_another_host_than_the_master_serves_nothing() -> None:
    agent = Agent()
    agent.dispatcher.handle(begin(node_rank=1, nnodes=2, port=4711))
    info = agent.rendezvous.next_rendezvous()
    assert (info.rank, agent.rendezvous.place.first_rank, agent.rendezvous.place.master_port) == (1, 2, 4711)


def test_without_another_attempt_the_agent_leaves() -> None:
    agent = Agent()
    agent.dispatcher.handle(Finish())
    with pytest.raises(RendezvousGracefulExitError):
        agent.rendezvous.next_rendezvous()


def test_a_cancelled_attempt_is_noticed_and_an_older_one_is_not() -> None:
    agent = Agent()
    agent.dispatcher.handle(begin(attempt=1))
    agent.rendezvous.next_rendezvous()
    agent.dispatcher.handle(Cancel(0))
    assert agent.rendezvous.num_nodes_waiting() == 0
    agent.dispatcher.handle(Cancel(1))
    assert agent.rendezvous.num_nodes_waiting() == 1


def test_that_all_ranks_are_done_is_told_once_and_the_launcher_ends_the_run() -> None:
    agent = Agent()
    agent.dispatcher.handle(begin())
    agent.rendezvous.next_rendezvous()
    assert not agent.rendezvous.all_done(0)
    assert not agent.rendezvous.all_done(0)
    assert agent.sent() == [Done(0)]
    agent.dispatcher.handle(Finish())
    assert agent.rendezvous.all_done(10)


def test_a_ping_is_answered_by_whoever_holds_the_channel() -> None:
    agent = Agent()
    agent.dispatcher.handle(Ping(7))
    (pong,) = agent.sent()
    assert isinstance(pong, Pong)
    assert pong.sent_ns == 7


def test_a_message_of_another_version_is_refused_by_its_name() -> None:
    agent = Agent()
    agent.dispatcher.handle(UnknownMessage("Later"))
    (refused,) = agent.sent()
    assert isinstance(refused, Refused)
    assert "sent the message Later, which rollcall here does not know" in refused.text


def test_a_stop_before_there_are_ranks_ends_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be waiting for other hosts, and need not finish that."""
    monkeypatch.setattr("os._exit", sys.exit)
    with pytest.raises(SystemExit) as ended:
        Agent().dispatcher.handle(Stop(15))
    assert ended.value.code == 128 + 15


@pytest.fixture
def port() -> Iterator[int]:
    """Kept for this test until its node 0 takes it."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((LOOPBACK, 0))
        yield held.getsockname()[1]


def host(port: int, node_rank: int | None, nnodes: int = 2, **more: Any) -> StoreRendezvous:
    settings: dict[str, Any] = {"slots": 2, "addr": LOOPBACK, "port": port, "run_id": "r", "timeout_s": 20.0}
    return StoreRendezvous(nnodes=nnodes, node_rank=node_rank, **{**settings, **more})


def both(port: int, *slots: int) -> list[StoreRendezvous]:
    """Two hosts, each made in a thread of its own: they wait for each other."""
    with ThreadPoolExecutor(2) as pool:
        made = [pool.submit(host, port, node, slots=count) for node, count in enumerate(slots)]
        return [each.result() for each in made]


def next_of(hosts: list[StoreRendezvous]) -> list[Any]:
    with ThreadPoolExecutor(len(hosts)) as pool:
        return list(pool.map(lambda each: each.next_rendezvous(), hosts))


def test_hosts_agree_on_their_order_and_on_the_store_of_their_ranks(port: int) -> None:
    hosts = both(port, 2, 3)
    infos = next_of(hosts)
    assert [(info.rank, info.world_size) for info in infos] == [(0, 2), (1, 2)]
    assert len({(info.bootstrap_store_info.master_addr, info.bootstrap_store_info.master_port) for info in infos}) == 1
    assert [each.slots_of_all() for each in hosts] == [[2, 3]] * 2


def test_every_attempt_has_a_store_of_its_own(port: int) -> None:
    """Restarted ranks must not find the addresses of dead ones."""
    hosts = both(port, 2, 2)
    first, second = next_of(hosts), next_of(hosts)
    assert first[0].bootstrap_store_info.master_port != second[0].bootstrap_store_info.master_port
    assert second[0].bootstrap_store_info.master_port == second[1].bootstrap_store_info.master_port


def test_a_failure_on_one_host_is_noticed_on_the_other(port: int) -> None:
    hosts = both(port, 2, 2)
    next_of(hosts)
    assert hosts[1].num_nodes_waiting() == 0
    hosts[0].announce_failure("rank 0 on a exited with code 3", final=False)
    assert until(hosts[1].num_nodes_waiting)  # a store answers each connection in its own order
    assert hosts[1].failure_of_attempt() == "rank 0 on a exited with code 3"


def test_after_the_last_failure_no_attempt_begins(port: int) -> None:
    hosts = both(port, 2, 2)
    next_of(hosts)
    hosts[0].announce_failure("the run was stopped on a", final=True)
    assert until(hosts[1].num_nodes_waiting)
    with pytest.raises(WorldError, match="the run was stopped on a"):
        hosts[1].next_rendezvous()


def test_the_run_is_done_when_all_hosts_are(port: int) -> None:
    hosts = both(port, 2, 2)
    next_of(hosts)
    assert not hosts[0].all_done()
    assert until(hosts[1].all_done)
    assert until(hosts[0].all_done)


def test_what_a_host_tells_the_others_is_of_one_attempt(port: int) -> None:
    hosts = both(port, 2, 2)
    next_of(hosts)
    assert hosts[0].published("topic") == [""]
    hosts[1].publish("topic", "of 1")
    assert until(lambda: hosts[0].published("topic") == ["of 1"])
    assert hosts[1].published("topic") == [""]
    next_of(hosts)
    assert hosts[0].published("topic") == [""]


def test_two_hosts_with_one_number_are_refused(port: int) -> None:
    first = host(port, 0)
    threading.Thread(target=first.next_rendezvous, daemon=True).start()
    ones = [host(port, 1), host(port, 1, slots=4)]
    with pytest.raises(UsageError, match="two agents say they are node 1"):
        next_of(ones)


def test_a_host_that_does_not_come_is_named(port: int) -> None:
    told: list[str] = []
    with pytest.raises(WorldError, match=r"after 1 s 1 of 2 hosts \(node 1\) had not come"):
        host(port, 0, timeout_s=1.0, tell=told.append).next_rendezvous()


def test_node_0_that_does_not_answer_is_named(port: int) -> None:
    with pytest.raises(WorldError, match=f"node 0 at 127.0.0.1:{port} did not answer within 1 s"):
        host(port, 1, timeout_s=1.0)
