"""One sort of op between gloo ranks, some megabytes each; then each rank tells how much was sent meanwhile.

    python traffic_of_ops.py OP [FOLDER]      as one rank; counters are written to FOLDER

The interface of a host has one counter for all; the kernel counts for each connection of a rank, too.
"""

import json
import os
import socket
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

REPEATS, ELEMENTS = 4, 1 << 20


def ops(rank: int, size: int) -> dict[str, Callable[[], object]]:
    x = torch.ones(ELEMENTS)
    part = torch.ones(ELEMENTS // size)
    whole = torch.empty(ELEMENTS)
    parts = [torch.empty(ELEMENTS // size) for _ in range(size)]
    other = (rank + size // 2) % size
    return {
        "all_reduce": lambda: dist.all_reduce(x),
        "broadcast": lambda: dist.broadcast(x, 1),
        "reduce": lambda: dist.reduce(x, 1),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, x),
        "gather": lambda: dist.gather(part, parts if rank == 1 else None, 1),
        "scatter": lambda: dist.scatter(part, parts if rank == 1 else None, 1),
        "all_to_all": lambda: dist.all_to_all_single(whole, x),
        "send": lambda: dist.send(x, other) if rank < size // 2 else dist.recv(x, other),
    }


def sent_bytes() -> int:
    """By all interfaces of this host but its loopback. (/sys would show those of the machine.)"""
    rows = [line.split(":") for line in Path("/proc/self/net/dev").read_text().splitlines() if ":" in line]
    return sum(int(counters.split()[8]) for name, counters in rows if name.strip() != "lo")


def sent_to() -> dict[str, int]:
    """By address of the other host: bytes that its connections have acknowledged."""
    found: dict[str, int] = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            connection = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        with connection:
            if connection.family == socket.AF_INET and connection.type == socket.SOCK_STREAM:
                _add(connection, found)
    return found


def _add(connection: socket.socket, found: dict[str, int]) -> None:
    try:
        address = connection.getpeername()[0]
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    except OSError:
        return
    found[address] = found.get(address, 0) + struct.unpack_from("<Q", info, 120)[0]  # tcpi_bytes_acked


def own_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((os.environ["MASTER_ADDR"], 9))  # sends nothing
        return str(probe.getsockname()[0])


def main() -> None:
    op, *folder = sys.argv[1:]
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    call = ops(rank, size)[op]
    dist.barrier()
    before, before_to = (sent_bytes(), sent_to()) if folder else (0, {})
    dist.barrier()
    began_s = time.perf_counter()
    for _ in range(REPEATS):
        call()
    dist.barrier()
    seconds = time.perf_counter() - began_s
    if folder:
        found = {
            "host": int(os.environ["GROUP_RANK"]),
            "address": own_address(),
            "seconds": seconds,
            "sent": sent_bytes() - before,
            "to": {address: count - before_to.get(address, 0) for address, count in sent_to().items()},
        }
        (Path(folder[0]) / f"rank-{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
