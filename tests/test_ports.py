import socket

import pytest

from rollcall.errors import UsageError
from rollcall.ports import EVERYWHERE, find_free_port, is_free_port, listen


def test_listen_keeps_the_port() -> None:
    """A port that `listen` took is taken, and free again once the socket is closed."""
    with listen() as listener:
        port = listener.getsockname()[1]
        assert not is_free_port(port)
    assert is_free_port(port)


def test_loopback_is_the_default() -> None:
    """The default listens on IPv4's loopback alone."""
    with listen() as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


def test_every_address() -> None:
    """EVERYWHERE listens on all addresses of this host."""
    with listen(EVERYWHERE) as listener:
        assert listener.getsockname()[0] == "0.0.0.0"


def test_a_busy_port_is_named_with_its_holder() -> None:
    """The error of a busy port names the port, the process that holds it, and what to do."""
    import os

    with listen() as listener:
        port = listener.getsockname()[1]
        with pytest.raises(UsageError, match=rf"port {port} .* process {os.getpid()} .* use another port"):
            listen("localhost", port)


def test_a_closed_connection_does_not_block_the_port() -> None:
    """A port is free again at once after a server that had connections."""
    with listen() as listener, socket.create_connection(listener.getsockname()) as client:
        port = listener.getsockname()[1]
        server, _ = listener.accept()
        server.close()
        client.recv(1)
    assert is_free_port(port)


def test_find_from_a_start() -> None:
    """With a start, the first free port from there on is found."""
    with listen() as listener:
        busy = listener.getsockname()[1]
        assert find_free_port(start=busy) > busy


def test_found_ports_are_free() -> None:
    """A found port is free at that moment."""
    assert is_free_port(find_free_port())


@pytest.mark.parametrize("port", [-1, 65536])
def test_no_such_port(port: int) -> None:
    """A number outside the range is an error, not a busy port."""
    with pytest.raises(UsageError, match="does not exist"):
        listen("localhost", port)
    with pytest.raises(UsageError, match="does not exist"):
        is_free_port(port)


def test_an_unknown_host() -> None:
    """A host that has no address is an error that names it."""
    with pytest.raises(UsageError, match=r"host 'no such host' has no address"):
        listen("no such host")


def test_an_address_of_another_host() -> None:
    """An address of another host is an error that says so."""
    with pytest.raises(UsageError, match=r"203\.0\.113\.1 is not an address of this host"):
        listen("203.0.113.1")
