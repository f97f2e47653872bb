"""Links from ranks of this host to the launcher: for debuggers and prompts. What a rank writes to its socket goes to
the launcher in messages, and back.

The socket is one of Linux's abstract ones: it has no file, and whoever connects must be of this user.
"""

import contextlib
import json
import os
import secrets
import socket
import threading

from rollcall.linux import fd_messages
from rollcall.protocol.channel import Channel
from rollcall.protocol.messages import FromRank, LinkClosed, LinkOpened
from rollcall.protocol.plan import LOOPBACK

_CHUNK = 1 << 16
_HELLO_S = 10.0


class RankLinks:
    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._links: dict[tuple[int, str], socket.socket] = {}
        self._lock = threading.Lock()
        self.address = f"rollcall-{os.getpid()}-{secrets.token_hex(8)}"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"\0{self.address}")
        self._listener.listen(64)
        threading.Thread(target=self._accept, name="rank links", daemon=True).start()

    def send(self, rank: int, purpose: str, data: bytes) -> None:
        """No data: there will be none any more."""
        link = self._links.get((rank, purpose))
        if link is not None:
            with contextlib.suppress(OSError):  # the rank has ended, which is told elsewhere
                link.sendall(data) if data else link.shutdown(socket.SHUT_WR)

    def _accept(self) -> None:
        while True:
            link, _ = self._listener.accept()
            if fd_messages.peer_uid(link) == os.geteuid():
                threading.Thread(target=self._read, args=(link,), name="rank link", daemon=True).start()
            else:
                link.close()

    def _read(self, link: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError, KeyError), link, link.makefile("rb") as reader:
            link.settimeout(_HELLO_S)
            hello = json.loads(reader.readline())
            link.settimeout(None)
            key = int(hello["rank"]), str(hello["purpose"])
            self._add(key, link)
            self._channel.send(LinkOpened(*key))
            while data := reader.read1(_CHUNK):
                self._channel.send(FromRank(*key, data))
            self._forget(key, link)

    def open(self, rank: int, purpose: str, port: int) -> None:
        """Connects to a port that the rank has opened on the loopback interface of this host."""
        key = rank, purpose
        try:
            link = socket.create_connection((LOOPBACK, port), timeout=_HELLO_S)
        except OSError:
            self._channel.send(LinkClosed(*key))
            return
        link.settimeout(None)
        self._add(key, link)
        threading.Thread(target=self._read_port, args=(key, link), name="rank port", daemon=True).start()

    def _read_port(self, key: tuple[int, str], link: socket.socket) -> None:
        with contextlib.suppress(OSError), link:
            while data := link.recv(_CHUNK):
                self._channel.send(FromRank(*key, data))
        self._forget(key, link)

    def _add(self, key: tuple[int, str], link: socket.socket) -> None:
        with self._lock:
            self._links[key] = link

    def _forget(self, key: tuple[int, str], link: socket.socket) -> None:
        with self._lock:
            if self._links.get(key) is link:
                del self._links[key]
        with contextlib.suppress(OSError):  # the launcher is gone; the heartbeat notices that
            self._channel.send(LinkClosed(*key))
