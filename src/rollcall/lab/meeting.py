"""The world of an experiment, on a rank."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollcall import World


@contextmanager
def meet(backend: str | None, init_method: str = "env://") -> "Iterator[World]":
    """All ranks have come before anyone goes on, and no group is left when it is over."""
    import torch.distributed as dist

    from rollcall.group import init

    with init(backend, init_method=init_method) as world:
        world.barrier()  # who is done in no time must not leave while others still connect
        yield world
    if dist.is_initialized():  # the world was left within, and another one made: hello does that
        dist.destroy_process_group()
