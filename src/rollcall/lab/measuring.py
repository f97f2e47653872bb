"""What ranks measure of their own work: how long it takes, and how many bytes it sends."""

import contextlib
import os
import socket
import struct
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from rollcall import World

Work = Callable[[], Any]

_BYTES_SENT_AT = 200  # offset in the kernel's struct tcp_info, since Linux 4.19
_INFO_BYTES = 256
_SENDING_S = 0.005  # until the last bytes of a call that has returned are sent


def time_once(work: Work, device: torch.device) -> float:
    """How long it takes, in seconds. A GPU is still at work when a call returns, so we wait for it."""
    synchronize = partial(torch.cuda.synchronize, device) if device.type == "cuda" else lambda: None
    synchronize()
    start_s = time.monotonic()
    work()
    synchronize()
    return time.monotonic() - start_s


def count_sent_bytes(work: Work, world: World) -> int:
    """The bytes that this rank sends for this work, which all ranks do at the same time."""
    world.barrier()
    time.sleep(_SENDING_S)
    before = _sent_bytes()
    work()
    time.sleep(_SENDING_S)
    sent = _sent_bytes() - before
    world.barrier()  # no rank starts the next one while others still count
    return sent


def _sent_bytes() -> int:
    """Over all TCP connections of this process, as the kernel counts them, with the headers of the protocol above."""
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
