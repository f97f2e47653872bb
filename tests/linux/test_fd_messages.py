"""JSON and open files over a Unix socket."""

import os
import socket
from collections.abc import Iterator

import pytest

from rollcall.linux import fd_messages

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def test_a_message_arrives_with_its_files(pair: Pair) -> None:
    reader, writer = os.pipe()
    fd_messages.send(pair[0], {"text": "x" * 100_000}, [writer])
    message, (arrived,) = fd_messages.receive(pair[1])
    assert message == {"text": "x" * 100_000}
    os.write(arrived, b"through the copy")
    assert os.read(reader, 100) == b"through the copy"
    for fd in (reader, writer, arrived):
        os.close(fd)


def test_the_next_message_is_not_read_with_the_first(pair: Pair) -> None:
    for number in (1, 2):
        fd_messages.send(pair[0], {"number": number}, [])
    assert [fd_messages.receive(pair[1])[0]["number"] for _ in range(2)] == [1, 2]


@pytest.mark.parametrize("sent", [b"", (9).to_bytes(8, "big") + b'{"cut"'])
def test_a_message_that_is_cut_off_is_an_end_of_file(pair: Pair, sent: bytes) -> None:
    pair[0].sendall(sent)
    pair[0].close()
    with pytest.raises(EOFError):
        fd_messages.receive(pair[1])


def test_the_user_at_the_other_end_is_known(pair: Pair) -> None:
    assert fd_messages.peer_uid(pair[0]) == os.geteuid()
