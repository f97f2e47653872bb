"""The world of an experiment, on a rank."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollcall import World


@contextmanager
def meet(backend: str | None, init_method: str = "env://") -> "Iterator[World]":
    """All ranks have come before anyone goes on. An experiment may leave its world by itself: hello does."""
    from rollcall.initialization.process_group import init

    with init(backend, init_method=init_method) as world:
        world.barrier()  # who is done in no time must not leave while others still connect
        yield world
