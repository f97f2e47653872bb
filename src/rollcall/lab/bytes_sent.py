"""How many bytes this process has sent: the kernel counts them for every connection."""

import contextlib
import os
import socket
import struct

_BYTES_SENT_AT = 200  # offset in the kernel's struct tcp_info, since Linux 4.19
_INFO_BYTES = 256


def sent_bytes() -> int:
    """Bytes sent over all TCP connections of this process, with the headers of the protocol above TCP."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                total += _sent_on(int(name))
    return total


def _sent_on(fd: int) -> int:
    with socket.socket(fileno=os.dup(fd)) as connection:
        if connection.type != socket.SOCK_STREAM or connection.family not in (socket.AF_INET, socket.AF_INET6):
            return 0
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    if len(info) < _BYTES_SENT_AT + 8:
        return 0
    return int(struct.unpack_from("Q", info, _BYTES_SENT_AT)[0])
