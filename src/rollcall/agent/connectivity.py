"""How hosts reach each other: the master's door, the way to it, and the interface at its near end.

A host is never asked for its address by its name: on many systems a host's own name means 127.0.1.1 there.
The master offers all its addresses, the others knock at each, and what answers with the run's token counts.
"""

import contextlib
import errno
import ipaddress
import os
import socket
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from rollcall.errors import UsageError
from rollcall.ports import EVERYWHERE, listen
from rollcall.protocol.messages import Measured, Opened, Refused, Tried, Wire

_KNOCK_S = 4.0
_ACCEPT_S = 0.05
_TOKEN_BYTES = 64
_PINGS = 40
_CHUNK = bytes(1 << 20)
_STREAM_S = 0.25


class Door:
    """A listening port that answers everyone with the token, until `close` hands the socket on.

    After the token a caller may ask: `p` to have bytes sent back one by one, `b` to be sent as much as fits
    into a moment.
    """

    def __init__(self, port: int, token: str) -> None:
        self._listener = listen(_everywhere(), port)
        self._token = token.encode().ljust(_TOKEN_BYTES)
        self._closing = threading.Event()
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._answer, name="door", daemon=True)
        self._thread.start()

    def close(self) -> socket.socket:
        """The listening socket, for whoever is to serve there from now on."""
        self._closing.set()
        self._thread.join()
        self._listener.settimeout(None)
        return self._listener

    def _answer(self) -> None:
        self._listener.settimeout(_ACCEPT_S)
        while not self._closing.is_set():
            with contextlib.suppress(TimeoutError):
                caller, _ = self._listener.accept()
                caller.settimeout(_KNOCK_S)
                with caller, contextlib.suppress(OSError):
                    caller.sendall(self._token)
                    self._serve(caller)

    def _serve(self, caller: socket.socket) -> None:
        while wish := caller.recv(1):
            if wish == b"p":
                caller.sendall(wish)
            elif wish == b"b":
                end = time.monotonic() + _STREAM_S
                while time.monotonic() < end:
                    caller.sendall(_CHUNK)
                return


def knock(address: str, port: int, token: str) -> socket.socket:
    """A connection to the door at this address. OSError if nobody answers there, or somebody else does."""
    caller = socket.create_connection((address, port), timeout=_KNOCK_S)
    try:
        if _read(caller, _TOKEN_BYTES) != token.encode().ljust(_TOKEN_BYTES):
            raise ConnectionError("another program answers there")
    except BaseException:
        caller.close()
        raise
    caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return caller


def open_door(wire: Wire, attempt: int, port: int, token: str) -> list[Door]:
    """Open and tell the launcher; none where the port cannot be had, which the launcher is told."""
    try:
        door = Door(port, token)
    except UsageError as error:
        wire.send(Refused(str(error), error.exit_code))
        return []
    wire.send(Opened(attempt, door.port, own_addresses(os.environ)))
    return [door]


def try_all(attempt: int, addresses: list[str], port: int, token: str) -> Tried:
    """By address: our own address and interface on the way there; and what went wrong at the others."""

    def try_one(address: str) -> tuple[str, str] | str:
        try:
            with knock(address, port, token) as caller:
                own = str(caller.getsockname()[0])
                return own, interface_of(own) or ""
        except OSError as error:
            return _why(error)

    with ThreadPoolExecutor(max(1, len(addresses))) as pool:
        answers = dict(zip(addresses, pool.map(try_one, addresses), strict=True))
    own = {address: answer for address, answer in answers.items() if not isinstance(answer, str)}
    return Tried(attempt, own, {address: answer for address, answer in answers.items() if isinstance(answer, str)})


def unreachable(others: Mapping[str, str]) -> list[str]:
    """The hosts whose machine gives no sign of life. A port where nobody listens is one: its machine refuses it."""

    def is_silent(address: str) -> bool:
        try:
            socket.create_connection((address, _NOBODYS_PORT), timeout=_SIGN_OF_LIFE_S).close()
        except (TimeoutError, socket.gaierror):
            return True
        except OSError as error:
            return error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN)
        return False

    with ThreadPoolExecutor(max(1, len(others))) as pool:
        silent = pool.map(is_silent, others.values())
    return [name for name, is_so in zip(others, silent, strict=True) if is_so]


_NOBODYS_PORT = 9  # "discard", which nobody serves any more
_SIGN_OF_LIFE_S = 2.0


def measure(addresses: list[str], port: int, token: str) -> Measured:
    """Round trip in seconds and throughput in bytes per second, at the first address that answers."""
    error = "it has no address"
    for address in addresses:
        try:
            with knock(address, port, token) as caller:
                return Measured(_round_trip(caller), _throughput(caller))
        except OSError as failed:
            error = _why(failed)
    return Measured(error=error)


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


def _everywhere() -> str:
    """All addresses: IPv4's alone where there are any, since torch looks up names for those dressed as IPv6."""
    has_ipv4 = any(":" not in address and not address.startswith("127.") for address, _ in _interfaces())
    return EVERYWHERE if has_ipv4 or not any(":" in address for address, _ in _interfaces()) else "::"


def own_addresses(environ: Mapping[str, str]) -> dict[str, str]:
    """Where others may find this host, with the interface: where ssh came in, then networks, then loopback."""
    # client address, client port, server address, server port
    by_ssh = environ.get("SSH_CONNECTION", "").split()[2:3]
    found = {address: name for address, name in _interfaces() if not ipaddress.ip_address(address).is_link_local}
    ordered = sorted(found, key=lambda a: (a not in by_ssh, ipaddress.ip_address(a).is_loopback, ":" in a))
    return {address: found[address] for address in ordered}


def interface_of(address: str) -> str | None:
    """The name of the interface that has this address: gloo and NCCL are told names."""
    return next((name for own, name in _interfaces() if own == address), None)


def interface_env(interface: str | None, forced: bool) -> dict[str, str]:
    """The variables that keep gloo and NCCL from choosing by themselves. The user's own stay, unless forced."""
    if not interface:
        return {}
    names = {"GLOO_SOCKET_IFNAME": interface, "TP_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}
    return {name: value for name, value in names.items() if forced or name not in os.environ}


def _interfaces() -> list[tuple[str, str]]:
    import psutil  # here: an agent that only says that it is present does not need it

    families = (socket.AF_INET, socket.AF_INET6)
    return [
        (entry.address.partition("%")[0], name)
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family in families
    ]
