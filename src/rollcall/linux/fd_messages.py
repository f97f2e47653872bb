"""Messages on a Unix socket: JSON, with open files beside it."""

import json
import socket
import struct
from typing import Any

_LENGTH_BYTES = 8
_MOST_FDS = 16


def send(connection: socket.socket, message: dict[str, Any], fds: list[int]) -> None:
    body = json.dumps(message).encode()
    socket.send_fds(connection, [len(body).to_bytes(_LENGTH_BYTES, "big")], fds)
    connection.sendall(body)


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """EOFError if the other side is gone."""
    head, fds, _, _ = socket.recv_fds(connection, _LENGTH_BYTES, _MOST_FDS)
    while 0 < len(head) < _LENGTH_BYTES:
        head += connection.recv(_LENGTH_BYTES - len(head))
    if not head:
        raise EOFError
    size, body = int.from_bytes(head, "big"), bytearray()
    while len(body) < size:
        chunk = connection.recv(size - len(body))
        if not chunk:
            raise EOFError
        body += chunk
    return json.loads(body), fds


def peer_uid(connection: socket.socket) -> int:
    """The user at the other end, as the kernel knows it."""
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(uid)
