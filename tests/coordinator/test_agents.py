"""All agents of a run: those that are not needed any more are cut off."""

import io

from rollcall.coordinator.agents import Agents
from rollcall.protocol.hosts import Host
from rollcall.transport.connection import Connection


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
