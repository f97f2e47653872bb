"""Bytes between a rank's link and the prompt of `rollcall shell`."""

import io
import json
import os
import queue
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollcall.agent.rank_connections import RankConnections
from rollcall.coordinator.debugging.relay import Relay
from rollcall.protocol.channel import Channel
from rollcall.protocol.messages import ConnectToRank, FromRank, Message, RankDisconnected, ToRank

RUN = Path("/runs/one")


class FakeAgent:
    def __init__(self) -> None:
        self._sent: queue.SimpleQueue[Message] = queue.SimpleQueue()

    def send(self, message: Message) -> None:
        self._sent.put(message)

    def next(self) -> Message:
        return self._sent.get(timeout=30)


@pytest.fixture
def prompt(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "ranks"))
        listener.listen(1)
        listener.settimeout(30)
        yield listener


def test_both_ways_and_to_the_end(prompt: socket.socket) -> None:
    """The prompt learns the folder of the run, then what the rank says, also when it does not read for a while; when
    the prompt is gone, the rank learns that."""
    agent, relay = FakeAgent(), Relay(prompt.getsockname(), RUN, is_here=True)
    relay.note_opened(agent, 2, "prompt")  # type: ignore[arg-type]
    link, _ = prompt.accept()
    much = b"x" * (1 << 22)  # more than a socket holds
    relay.note_data(2, "prompt", much)
    relay.note_data(2, "prompt", b"end\n")
    with link, link.makefile("rb") as reader:
        assert json.loads(reader.readline()) == {"folder": str(RUN)}
        assert reader.readline() == much + b"end\n"
        link.sendall(b"a line")
        assert agent.next() == ToRank(2, "prompt", b"a line")
    assert agent.next() == ToRank(2, "prompt", b"")


def test_a_rank_that_has_ended(prompt: socket.socket) -> None:
    agent, relay = FakeAgent(), Relay(prompt.getsockname(), RUN, is_here=True)
    relay.note_opened(agent, 0, "prompt")  # type: ignore[arg-type]
    link, _ = prompt.accept()
    relay.note_closed(0, "prompt")
    with link, link.makefile("rb") as reader:
        assert len(reader.readlines()) == 1


def test_without_a_prompt_the_rank_is_told(tmp_path: Path) -> None:
    agent = FakeAgent()
    Relay(str(tmp_path / "gone"), RUN, is_here=True).note_opened(agent, 1, "prompt")  # type: ignore[arg-type]
    assert agent.next() == ToRank(1, "prompt", b"")


def test_a_port_of_a_rank_on_another_host() -> None:
    """A client of ours talks to it by way of launcher and agent, whose connection is a pipe here. Ports of ranks on
    this machine stay as they are."""
    answer = {"port": 5678, "host": "h1"}
    assert Relay("", RUN, is_here=True).reachable(FakeAgent(), 0, answer) == answer  # type: ignore[arg-type]
    relay = Relay("", RUN, is_here=False)
    reader_fd, writer_fd = os.pipe()
    with (
        socket.create_server(("127.0.0.1", 0)) as port,
        open(reader_fd, "rb") as reader,
        open(writer_fd, "wb") as writer,
    ):
        links = RankConnections(Channel(io.BytesIO(), writer))
        given = relay.reachable(_Through(links), 3, {"port": port.getsockname()[1], "host": "h1"})  # type: ignore[arg-type]
        with socket.create_connection(("127.0.0.1", given["port"]), 30) as client:
            rank, _ = port.accept()
            with rank:
                client.sendall(b"question")
                assert rank.recv(100) == b"question"
                rank.sendall(b"answer")
                channel = Channel(reader, io.BytesIO())
                message = channel.receive()
                assert isinstance(message, FromRank)
                assert (message.rank, message.data) == (3, b"answer")
                relay.note_data(message.rank, message.purpose, message.data)
                assert client.recv(100) == b"answer"
            assert channel.receive() == RankDisconnected(3, message.purpose)
            relay.note_closed(3, message.purpose)
            assert client.recv(100) == b""


class _Through:
    """An agent whose messages are done at once."""

    def __init__(self, links: RankConnections) -> None:
        self._links = links

    def send(self, message: Message) -> None:
        match message:
            case ConnectToRank(rank, purpose, port):
                self._links.open(rank, purpose, port)
            case ToRank(rank, purpose, data):
                self._links.send(rank, purpose, data)
