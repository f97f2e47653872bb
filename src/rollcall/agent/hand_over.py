"""Hands a host over from its supervisor, which answered the launcher, to its agent, which runs the ranks."""

import contextlib
import os
import socket
from dataclasses import asdict

from rollcall.linux import fd_messages
from rollcall.protocol.messages import Prepare


def give(link: socket.socket, prepare: Prepare, listener_fds: list[int]) -> None:
    """Runs in the supervisor: hands over what the agent is to run, and the port that the ranks will meet at."""
    with contextlib.suppress(OSError):  # the agent died already, which the supervisor notices by itself
        fd_messages.send(link, asdict(prepare), listener_fds)
    for fd in listener_fds:
        os.close(fd)


def take(link: socket.socket) -> tuple[Prepare, list[int]] | None:
    """Runs in the agent: returns what was handed over, or None if the supervisor is gone."""
    try:
        fields, fds = fd_messages.receive(link)
    except (EOFError, OSError):
        return None
    return Prepare(**fields), fds
