"""All agents of a run: those that are not needed any more are cut off, and one that was started anew is another one."""

import io
import os

from rollcall.coordinator.agents import Agents
from rollcall.protocol.hosts import Host
from rollcall.transport.connection import Connection
from tests.rollcall_command import until


def test_an_agent_that_connects_after_the_end_is_cut_off() -> None:
    """Ctrl-C may come before its connection is taken up: nobody would end it."""
    cut: list[bool] = []
    connection = Connection(io.BytesIO(), io.BytesIO(), greets=False, hang_up=lambda: cut.append(True))
    agents = Agents([Host("a", 1)], lambda hosts, connected: connected(hosts[0], connection), print)
    agents.start(agents.all)
    agents.kill()
    assert agents.next(0) is None
    assert cut == [True]
    assert agents.are_gone


def test_the_end_of_an_agent_is_not_that_of_the_one_that_follows_it() -> None:
    """An agent counts as up until its end is handled; an end that comes after the agent was started anew is dropped."""
    (first, first_end), (second, second_end) = os.pipe(), os.pipe()
    with open(first, "rb") as from_first, open(second, "rb") as from_second:
        connections = [Connection(each, io.BytesIO(), greets=False) for each in (from_first, from_second)]
        agents = Agents([Host("a", 1)], lambda hosts, connected: connected(hosts[0], connections.pop(0)), print)
        agents.start(agents.all)
        assert agents.next(0) is None  # it is connected now
        os.close(first_end)
        assert until(lambda: agents.has_more)
        assert agents.all[0].is_up
        agents.start(agents.all)
        assert agents.next(0) is None
        assert agents.all[0].is_up
        os.close(second_end)
        assert agents.next(180) is not None
        assert not agents.all[0].is_up
