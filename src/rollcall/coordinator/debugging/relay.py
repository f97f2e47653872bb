"""Passes bytes between a rank's connection and a socket of the launcher's machine, in both directions: for the prompt
of `rollcall shell`, and for debugpy on other hosts.

The prompt reads only while a line runs, and the launcher must not wait for it. So a thread writes to the prompt.
"""

import contextlib
import itertools
import json
import queue
import socket
import threading
from pathlib import Path
from typing import Any

from rollcall.coordinator.agents import Agent
from rollcall.protocol.messages import ConnectToRank, Message, ToRank
from rollcall.protocol.plan import LOOPBACK

_CHUNK = 1 << 16
_END = b""


class Relay:
    def __init__(self, prompt: str, folder: Path, is_here: bool) -> None:
        """`prompt` is the socket of `rollcall shell`, which is told the run's folder; empty without a shell. `is_here`:
        ports of ranks are ports of this machine."""
        self._prompt, self._folder, self._is_here = prompt, folder, is_here
        self._ports: dict[tuple[int, int], int] = {}  # ours, by rank and its port
        self._to_write: dict[tuple[int, str], queue.SimpleQueue[bytes]] = {}

    def note_opened(self, agent: Agent, rank: int, purpose: str) -> None:
        """A rank wants to talk to the prompt."""
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(self._prompt)
            connection.sendall(json.dumps({"folder": str(self._folder)}).encode() + b"\n")
        except OSError:  # the prompt is gone, or there never was one
            connection.close()
            agent.send(ToRank(rank, purpose, _END))
            return
        self._connect(agent, rank, purpose, connection)

    def note_data(self, rank: int, purpose: str, data: bytes) -> None:
        if (to_write := self._to_write.get((rank, purpose))) is not None:
            to_write.put(data)

    def note_closed(self, rank: int, purpose: str) -> None:
        if (to_write := self._to_write.pop((rank, purpose), None)) is not None:
            to_write.put(_END)

    def reachable(self, agent: Agent, rank: int, answer: dict[str, Any]) -> dict[str, Any]:
        """The answer of a rank. If it names a port, that is replaced by a port of this machine that leads to it."""
        if "port" not in answer or self._is_here:
            return answer
        key = rank, answer["port"]
        if key not in self._ports:
            listener = socket.create_server((LOOPBACK, 0))
            self._ports[key] = listener.getsockname()[1]
            threading.Thread(target=self._accept, args=(listener, agent, *key), name="port", daemon=True).start()
        return {**answer, "port": self._ports[key], "host": socket.gethostname()}

    def _accept(self, listener: socket.socket, agent: Agent, rank: int, port: int) -> None:
        for number in itertools.count():
            connection, _ = listener.accept()
            purpose = f"port {port}, connection {number}"
            self._connect(agent, rank, purpose, connection, ConnectToRank(rank, purpose, port))

    def _connect(
        self, agent: Agent, rank: int, purpose: str, connection: socket.socket, first: Message | None = None
    ) -> None:
        """`first`: a message that must reach the agent before all others, and whose answers need a place."""
        to_write: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._to_write[rank, purpose] = to_write
        if first is not None:
            agent.send(first)

        def read() -> None:
            with connection, contextlib.suppress(OSError):
                while data := connection.recv(_CHUNK):
                    agent.send(ToRank(rank, purpose, data))
            agent.send(ToRank(rank, purpose, _END))

        def write() -> None:
            with contextlib.suppress(OSError):  # the reader is gone
                while data := to_write.get():
                    connection.sendall(data)
                connection.shutdown(socket.SHUT_RDWR)

        for target in (read, write):
            threading.Thread(target=target, name=f"{purpose} of rank {rank}", daemon=True).start()
