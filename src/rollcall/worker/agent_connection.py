"""A rank's connection to a terminal: a socket of its agent, which passes all bytes on to the launcher. No port is
opened."""

import json
import os
import socket
from collections.abc import Mapping

from rollcall.linux import fd_messages

_VARIABLE = "ROLLCALL_LINK"  # for a fresh interpreter


def _given(environ: Mapping[str, str]) -> tuple[str, int, int]:
    """What a fresh interpreter was told. Its children inherit the variable, but are not the rank."""
    address, _, numbers = environ.get(_VARIABLE, "").partition(" ")
    rank, _, pid = numbers.partition(" ")
    return (address, int(rank), int(pid)) if rank.isdecimal() and pid.isdecimal() else ("", -1, -1)


# The address is that of the agent's socket; empty: this process was not started by an agent.
_address, _rank, _pid = _given(os.environ)


def use(address: str, rank: int) -> None:
    """From now on, this process is this rank."""
    global _address, _rank, _pid
    _address, _rank, _pid = address, rank, os.getpid()


def use_after_exec(address: str, rank: int) -> None:
    """After exec, the program in this process is this rank."""
    os.environ[_VARIABLE] = f"{address} {rank} {os.getpid()}"


def rank() -> int:
    """-1 in a process that is no rank of an agent, such as a child of a rank."""
    return _rank if _address and _pid == os.getpid() else -1


def connect(purpose: str) -> socket.socket:
    """Raises OSError if the agent does not answer, or is not of this user."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(f"\0{_address}")
        if fd_messages.peer_uid(connection) != os.geteuid():
            raise PermissionError(f"the socket {_address} belongs to another user")
        connection.sendall(json.dumps({"rank": _rank, "purpose": purpose}).encode() + b"\n")
    except OSError:
        connection.close()
        raise
    return connection
