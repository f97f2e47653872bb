"""What is rehearsed: how many ranks on how many hosts, with which GPU."""

import re
from dataclasses import dataclass

from rollcall.errors import UsageError
from rollcall.rehearse.network.link import Link

# The versions of torch on which a rehearsal was compared with real ranks. It relies on private parts of torch, and
# could be wrong in silence on others.
SUPPORTED = ("2.13", "2.15")
MOST_RANKS = 1 << 16


@dataclass(frozen=True)
class Gpu:
    """Its memory as the vendor names it, and as torch reports it: the vendor's GB are GiB, of which the card reserves
    some."""

    name: str
    memory_bytes: int
    capability: tuple[int, int]
    processors: int
    reported_gib: float = 0.0  # 0: as much as its name says

    @property
    def capacity_bytes(self) -> int:
        return int(self.reported_gib * 2**30) or self.memory_bytes


_GB = 10**9
GPUS = {
    "b200": Gpu("NVIDIA B200", 180 * _GB, (10, 0), 148, 178.3),
    "h200": Gpu("NVIDIA H200", 141 * _GB, (9, 0), 132, 139.7),
    "h100": Gpu("NVIDIA H100 80GB HBM3", 80 * _GB, (9, 0), 132, 79.1),
    "a100-80": Gpu("NVIDIA A100-SXM4-80GB", 80 * _GB, (8, 0), 108, 79.15),
    "a100-40": Gpu("NVIDIA A100-SXM4-40GB", 40 * _GB, (8, 0), 108, 39.38),
    "l40s": Gpu("NVIDIA L40S", 48 * _GB, (8, 9), 142, 44.39),
    "a10": Gpu("NVIDIA A10", 24 * _GB, (8, 6), 72, 21.98),
    "rtx4090": Gpu("NVIDIA GeForce RTX 4090", 24 * _GB, (8, 9), 128, 23.51),
    "t4": Gpu("Tesla T4", 16 * _GB, (7, 5), 40, 14.56),
}
_MEMORY = re.compile(r"memory=(\d+(?:\.\d+)?)\s*GB", re.IGNORECASE)


@dataclass(frozen=True)
class RehearsalSettings:
    world_size: int
    gpus_per_host: int
    ranks: tuple[int, ...]  # those that are rehearsed
    steps: int  # each rank is stopped after this number of optimizer steps; 0: it runs to its end
    gpu: Gpu
    assumptions: tuple[tuple[str, float], ...] = ()
    link: Link | None = None  # for an estimate
    logs_memory: bool = False  # each rank leaves all its allocations, to be tried on other cards
    limit_s: float = 120.0  # a rank that makes no op and no step for this time is stopped

    @property
    def hosts(self) -> int:
        return -(-self.world_size // self.gpus_per_host)


def parse_gpu(text: str) -> Gpu:
    found = GPUS.get(text.lower())
    if found is not None:
        return found
    memory = _MEMORY.fullmatch(text.strip())
    if memory is None:
        raise UsageError(f"--gpu {text} is not known: use one of {', '.join(GPUS)}, or memory=24GB")
    return Gpu(f"GPU with {memory[1]} GB", int(float(memory[1]) * _GB), (8, 0), 108)


def parse_assumption(text: str) -> tuple[str, float]:
    """`train.py:33=0.5`."""
    place, equals, value = text.rpartition("=")
    file, colon, line = place.rpartition(":")
    try:
        if not (equals and colon and file and line.isdecimal()):
            raise ValueError(text)
        return f"{file.rpartition('/')[2]}:{line}", float(value)
    except ValueError:
        raise UsageError(f"--assume {text} is not a line and a number: write it as train.py:33=0.5") from None


def check_torch(version: str) -> None:
    if not version.startswith(tuple(f"{each}." for each in SUPPORTED)):
        found = f"torch is {version}" if version else "there is no torch"
        raise UsageError(
            f"{found}, but a rehearsal was tried on torch {', '.join(SUPPORTED)} only: install one of these"
        )
