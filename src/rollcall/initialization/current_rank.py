"""The rank of this process, with or without a group. Does not import torch."""

import functools
import os
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from rollcall.initialization import environment

P = ParamSpec("P")
T = TypeVar("T")


def find_rank() -> int:
    """This process's rank: in the group if there is one, else as its launcher set it, else 0."""
    # A process that has not imported torch.distributed has no group.
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        return int(dist.get_rank())
    return environment.find_launched_rank(os.environ, environment.find_spawn_index())


def rank_zero_only(function: Callable[P, T]) -> Callable[P, T | None]:
    """Let only rank 0 run this function; the others return None. Works before, after and without a group."""

    @functools.wraps(function)
    def on_rank_zero(*args: P.args, **kwargs: P.kwargs) -> T | None:
        return function(*args, **kwargs) if find_rank() == 0 else None

    return on_rank_zero
