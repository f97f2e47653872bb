"""Latency and bandwidth between each two hosts."""

import time
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist

from rollcall.bench.results import Pair
from rollcall.protocol.hosts import rounds
from rollcall.world import World

_SMALL_BYTES, _LARGE_BYTES = 8, 4 << 20
_SMALL_TIMES, _LARGE_TIMES = 50, 5


def measure(world: World, hosts: Sequence[str]) -> Iterator[Pair]:
    """Between the first ranks of all hosts, in rounds in which no host is in two pairs; of one host, nothing."""
    first = {host: rank for rank, host in reversed(list(enumerate(hosts)))}
    names = sorted(first, key=first.__getitem__)
    own: list[Pair] = []
    for pairs in rounds(names):
        world.barrier()
        for start, end in pairs:
            if world.rank == first[start]:
                latency_s = _there_and_back_s(world, first[end], True, _SMALL_BYTES, _SMALL_TIMES)
                large_s = _there_and_back_s(world, first[end], True, _LARGE_BYTES, _LARGE_TIMES)
                own.append(Pair(start=start, end=end, latency_s=latency_s, gb_s=_LARGE_BYTES / large_s / 1e9))
            elif world.rank == first[end]:
                _there_and_back_s(world, first[start], False, _SMALL_BYTES, _SMALL_TIMES)
                _there_and_back_s(world, first[start], False, _LARGE_BYTES, _LARGE_TIMES)
    found: list[list[Pair]] = [[] for _ in hosts]
    dist.all_gather_object(found, own)
    for each in found:
        yield from each


def _there_and_back_s(world: World, other: int, starts: bool, size_bytes: int, times: int) -> float:
    """Half of the fastest round trip: the slower ones were disturbed by other programs."""
    box = torch.zeros(size_bytes, dtype=torch.uint8, device=world.device)
    fastest_s = float("inf")
    for _ in range(times):
        began_s = time.perf_counter()
        if starts:
            dist.send(box, other)
            dist.recv(box, other)
        else:
            dist.recv(box, other)
            dist.send(box, other)
        if world.device.type == "cuda":
            torch.cuda.synchronize()
        fastest_s = min(fastest_s, time.perf_counter() - began_s)
    return fastest_s / 2
