"""Connections from ranks of this host to the launcher, for debuggers and prompts. The agent sends what a rank writes to
its socket to the launcher in messages, and writes the launcher's answers to the socket.

The socket is an abstract socket of Linux: it has no file, and only processes of this user can connect.
"""

import contextlib
import json
import os
import secrets
import socket
import threading

from rollcall.linux import fd_messages
from rollcall.protocol.channel import Channel
from rollcall.protocol.messages import FromRank, RankConnected, RankDisconnected
from rollcall.protocol.plan import LOOPBACK

_CHUNK = 1 << 16
_HELLO_S = 10.0


class RankConnections:
    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._connections: dict[tuple[int, str], socket.socket] = {}
        self._lock = threading.Lock()
        self.address = f"rollcall-{os.getpid()}-{secrets.token_hex(8)}"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"\0{self.address}")
        self._listener.listen(64)
        threading.Thread(target=self._accept, name="rank connections", daemon=True).start()

    def send(self, rank: int, purpose: str, data: bytes) -> None:
        """No data: the other side has closed the connection."""
        connection = self._connections.get((rank, purpose))
        if connection is not None:
            with contextlib.suppress(OSError):  # the rank has ended, which the worker group reports
                connection.sendall(data) if data else connection.shutdown(socket.SHUT_WR)

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            if fd_messages.peer_uid(connection) == os.geteuid():
                threading.Thread(target=self._read, args=(connection,), name="rank connection", daemon=True).start()
            else:
                connection.close()

    def _read(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError, KeyError), connection, connection.makefile("rb") as reader:
            connection.settimeout(_HELLO_S)
            hello = json.loads(reader.readline())
            connection.settimeout(None)
            key = int(hello["rank"]), str(hello["purpose"])
            self._add(key, connection)
            self._channel.send(RankConnected(*key))
            while data := reader.read1(_CHUNK):
                self._channel.send(FromRank(*key, data))
            self._forget(key, connection)

    def open(self, rank: int, purpose: str, port: int) -> None:
        """Connects to a port that the rank has opened on the loopback interface of this host."""
        key = rank, purpose
        try:
            connection = socket.create_connection((LOOPBACK, port), timeout=_HELLO_S)
        except OSError:
            self._channel.send(RankDisconnected(*key))
            return
        connection.settimeout(None)
        self._add(key, connection)
        threading.Thread(target=self._read_port, args=(key, connection), name="rank port", daemon=True).start()

    def _read_port(self, key: tuple[int, str], connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            while data := connection.recv(_CHUNK):
                self._channel.send(FromRank(*key, data))
        self._forget(key, connection)

    def _add(self, key: tuple[int, str], connection: socket.socket) -> None:
        with self._lock:
            self._connections[key] = connection

    def _forget(self, key: tuple[int, str], connection: socket.socket) -> None:
        with self._lock:
            if self._connections.get(key) is connection:
                del self._connections[key]
        with contextlib.suppress(OSError):  # the launcher is gone; the heartbeat notices that
            self._channel.send(RankDisconnected(*key))
