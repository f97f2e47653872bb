"""How hosts reach each other: the port that the master reserves, and the address at which the others reach it.

A host never looks up its own name to find its address: on many systems the name resolves to 127.0.1.1 there. The master
offers all its addresses, and the others connect to each. An address counts if the run's token is answered there.
"""

import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from rollcall.addresses import every_address, interface_of, own_addresses
from rollcall.errors import UsageError
from rollcall.ports import listen
from rollcall.protocol.channel import Channel
from rollcall.protocol.messages import LinkMeasured, MasterReached, PortOpened, Refused

_CONNECT_S = 4.0
_ACCEPT_S = 0.05
_TOKEN_BYTES = 64
_PINGS = 40
_CHUNK = bytes(1 << 20)
_STREAM_S = 0.25
_UNUSED_PORT = 9  # "discard": hardly any machine has a server there
_ANSWER_S = 2.0


class TokenServer:
    """A listening port that answers everyone with the token, until `close` hands the socket on.

    After the token a caller may send `p` to get that byte back, or `b` to be sent data for a quarter of a second.
    """

    def __init__(self, port: int, token: str) -> None:
        self._listener = listen(every_address(), port)
        self._token = token.encode().ljust(_TOKEN_BYTES)
        self._closing = threading.Event()
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._answer, name="token server", daemon=True)
        self._thread.start()

    def close(self) -> socket.socket:
        """Stop answering. Returns the listening socket, for the server that takes the port over."""
        self._closing.set()
        self._thread.join()
        self._listener.settimeout(None)
        return self._listener

    def _answer(self) -> None:
        self._listener.settimeout(_ACCEPT_S)
        while not self._closing.is_set():
            with contextlib.suppress(TimeoutError):
                caller, _ = self._listener.accept()
                caller.settimeout(_CONNECT_S)
                with caller, contextlib.suppress(OSError):
                    caller.sendall(self._token)
                    self._serve(caller)

    def _serve(self, caller: socket.socket) -> None:
        while request := caller.recv(1):
            if request == b"p":
                caller.sendall(request)
            elif request == b"b":
                end = time.monotonic() + _STREAM_S
                while time.monotonic() < end:
                    caller.sendall(_CHUNK)
                return


def connect(address: str, port: int, token: str) -> socket.socket:
    """A connection to the token server at this address. OSError if nothing answers there, or another program does."""
    caller = socket.create_connection((address, port), timeout=_CONNECT_S)
    try:
        if _read(caller, _TOKEN_BYTES) != token.encode().ljust(_TOKEN_BYTES):
            raise ConnectionError("another program answers there")
    except BaseException:
        caller.close()
        raise
    caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return caller


def open_port(channel: Channel, attempt: int, port: int, token: str) -> TokenServer | None:
    """Listen, and tell the launcher. None if the port cannot be opened: then the launcher is told why."""
    try:
        server = TokenServer(port, token)
    except UsageError as error:
        channel.send(Refused(str(error), error.exit_code))
        return None
    channel.send(PortOpened(attempt, server.port, own_addresses(os.environ)))
    return server


def reach_master(attempt: int, addresses: list[str], port: int, token: str) -> MasterReached:
    """By address: our own address and interface on the way there; and what went wrong at the others."""

    def try_one(address: str) -> tuple[str, str] | str:
        try:
            with connect(address, port, token) as caller:
                own = str(caller.getsockname()[0])
                return own, interface_of(own) or ""
        except OSError as error:
            return _why(error)

    with ThreadPoolExecutor(max(1, len(addresses))) as pool:
        answers = dict(zip(addresses, pool.map(try_one, addresses), strict=True))
    own = {address: answer for address, answer in answers.items() if not isinstance(answer, str)}
    errors = {address: answer for address, answer in answers.items() if isinstance(answer, str)}
    return MasterReached(attempt, own, errors)


def unreachable(others: Mapping[str, str]) -> list[str]:
    """The hosts whose machine does not answer. A refused connection is an answer: the machine is there."""

    def is_silent(address: str) -> bool:
        try:
            socket.create_connection((address, _UNUSED_PORT), timeout=_ANSWER_S).close()
        except (TimeoutError, socket.gaierror):
            return True
        except OSError as error:
            return error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN)
        return False

    with ThreadPoolExecutor(max(1, len(others))) as pool:
        silent = pool.map(is_silent, others.values())
    return [name for name, is_so in zip(others, silent, strict=True) if is_so]


def measure(addresses: list[str], port: int, token: str) -> LinkMeasured:
    """Round trip in seconds and throughput in bytes per second, at the first address that answers."""
    error = "it has no address"
    for address in addresses:
        try:
            with connect(address, port, token) as caller:
                return LinkMeasured(_round_trip(caller), _throughput(caller))
        except OSError as failed:
            error = _why(failed)
    return LinkMeasured(error=error)


def _why(error: OSError) -> str:
    return "no answer" if isinstance(error, TimeoutError) else (error.strerror or str(error))


def _round_trip(caller: socket.socket) -> float:
    """The best of many: what the network takes, and not what a busy machine adds."""
    best = float("inf")
    for _ in range(_PINGS):
        start = time.perf_counter()
        caller.sendall(b"p")
        _read(caller, 1)
        best = min(best, time.perf_counter() - start)
    return best


def _throughput(caller: socket.socket) -> float:
    caller.sendall(b"b")
    buffer = bytearray(1 << 20)
    size, start = 0, time.perf_counter()
    while count := caller.recv_into(buffer):
        size += count
    return size / (time.perf_counter() - start)


def _read(caller: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = caller.recv(size - len(data))
        if not chunk:
            raise ConnectionError("the connection was closed")
        data += chunk
    return data
