"""The world as one rank sees it. Torch is imported only where a group is needed."""

import os
import socket
import sys
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    import logging

    import torch


class RankInfo(BaseModel):
    """The facts of one rank; `model_dump_json(indent=4)` prints them as a program's log wants them."""

    model_config = ConfigDict(frozen=True)

    master_addr: str
    master_port: str
    nnodes: int
    nproc_per_node: int
    node_rank: int
    world_size: int
    backend: str
    init_method: str
    global_rank: int
    local_world_size: int
    local_rank: int
    hostname: str
    process_id: int


class World:
    """All ranks of a run, seen from one of them. Leaving the `with` block destroys the group."""

    def __init__(
        self, info: RankInfo, device: "torch.device", logger: "logging.Logger", leave: Callable[[bool], None]
    ) -> None:
        # `leave` takes whether this rank has failed.
        self.info = info
        self.device = device
        self.logger = logger
        self._leave = leave

    @property
    def rank(self) -> int:
        return self.info.global_rank

    @property
    def size(self) -> int:
        return self.info.world_size

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0: the one that logs and saves."""
        return self.rank == 0

    def barrier(self) -> None:
        """Wait until every rank of the world has called this."""
        import torch.distributed as dist  # here, and below: `import rollcall` does not import torch

        # Without a device NCCL guesses one, from the global rank.
        dist.barrier(device_ids=[self.device.index] if self.device.type == "cuda" else None)

    def close(self) -> None:
        """Destroy the group. A second call does nothing."""
        self._leave(False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        # sys.exit(0) inside the block is no failure.
        ended_well = kind is None or (isinstance(error, SystemExit) and not error.code)
        self._leave(not ended_well)

    def __repr__(self) -> str:
        return f"<World: rank {self.rank} of {self.size}, {self.info.backend} on {self.device}>"


def get_hostname() -> str:
    return socket.gethostname()


def get_process_id() -> int:
    return os.getpid()


def display(rank: int | None = None, world_size: int | None = None) -> str:
    """Print, and return, the rank and world size that were passed, and those that the group has."""
    text = describe(rank, world_size)
    # In one write, or the lines of ranks that share a console are mixed.
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
    return text


def describe(rank: int | None = None, world_size: int | None = None) -> str:
    """The lines of `display`."""
    import torch.distributed as dist  # here: `import rollcall` does not import torch

    has_group = dist.is_available() and dist.is_initialized()
    lines = {
        "Explicit rank": rank,
        "Explicit world size": world_size,
        "Hostname": get_hostname(),
        "torch.distributed available": dist.is_available(),
        "World size in the initialised group": dist.get_world_size() if has_group else "no group yet",
        "Rank in the initialised group": dist.get_rank() if has_group else "no group yet",
    }
    return "\n".join(f"{name}: {value}" for name, value in lines.items())
