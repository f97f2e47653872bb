"""Programs that start their own ranks, and `rollcall.init`: each rehearsed rank keeps its own number.

`rollcall.init` uses a store in which all other ranks have registered, with the data of this rank. A program that calls
`spawn` would start the ranks of one host: here its function is called once, as this rank.
"""

import functools
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

import rollcall
from rollcall.compat import torch_timeouts
from rollcall.functions import api
from rollcall.initialization import process_group, roll_call
from rollcall.initialization.roll_call import Decision, Registration
from rollcall.initialization.stores import WorldClaim, WorldStore
from rollcall.protocol.torchrun_env import NUMBERS
from rollcall.rehearse.rank import values
from rollcall.rehearse.rank.patches import substitute
from rollcall.rehearse.rank.unsupported import Unsupported
from rollcall.rehearse.settings import RehearsalSettings


def install(settings: RehearsalSettings) -> None:
    each = min(settings.gpus_per_host, settings.world_size)
    substitute(process_group, "_open_store", lambda *_: _open_store(settings.world_size))
    substitute(process_group, "RollCall", functools.partial(RehearsedRollCall, gpus_per_host=each))
    substitute(dist, "is_backend_available", lambda backend: backend.lower() in process_group.KNOWN_BACKENDS)
    substitute(torch_timeouts, "default_limit", lambda backend: None)  # no op takes any time
    substitute(torch.multiprocessing, "spawn", functools.partial(_spawn, settings.world_size))
    for module in (rollcall, api):
        substitute(module, "spawn", functools.partial(_spawn_and_return, settings.world_size))


def _open_store(world_size: int) -> WorldStore:
    """Opens a store as if all other ranks had connected, and had left."""
    store = dist.HashStore()
    store.add(process_group._CONNECTED, world_size)
    store.add("left", world_size)
    return WorldStore(store, WorldClaim.new(world_size), leave=lambda last: None)


class RehearsedRollCall(roll_call.RollCall):
    """All ranks are registered with the data of this one, each on its host."""

    def __init__(self, *args: Any, gpus_per_host: int) -> None:
        super().__init__(*args)
        self._gpus_per_host = gpus_per_host

    def register(self, mine: Registration) -> None:
        self._mine = mine

    def wait_for_decision(self) -> Decision:
        decision = roll_call.decide_group([self._placed(rank) for rank in range(self._assignment.world_size)])
        if decision.error:
            raise rollcall.UsageError(decision.error)
        return decision

    def _placed(self, rank: int) -> Registration:
        node, local = divmod(rank, self._gpus_per_host)
        on_host = min(self._gpus_per_host, self._assignment.world_size - node * self._gpus_per_host)
        host = f"{self._mine.host}-{node}"
        return replace(self._mine, rank=rank, host=host, local_rank=local, node_rank=node, local_world_size=on_host)


def _local(name: str) -> int:
    return int(os.environ[NUMBERS[name]])


def _spawn(
    world_size: int,
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int = 1,
    join: bool = True,
    *_: Any,
    **__: Any,
) -> None:
    """torch.multiprocessing.spawn, on this host."""
    _check(nprocs, _local("local_world_size"), world_size)
    fn(_local("local_rank"), *args)


def _spawn_and_return(
    world_size: int, fn: Callable[..., Any], nprocs: int, args: tuple[Any, ...] = (), **_: Any
) -> list[Any]:
    """rollcall.spawn, which returns the results of all ranks. Those of the others are not known."""
    _check(nprocs, world_size, world_size)
    result = api.bound(fn, tuple(args))(_local("rank"))
    if nprocs > 1:
        values.notes.note("what this rank returns")
    return [result] * nprocs


def _check(asked: int, here: int, world_size: int) -> None:
    if asked == here:
        return
    on_hosts = f" --gpus-per-host {asked}" if here < world_size else ""
    raise Unsupported(f"spawn starts {asked} ranks on a host that has {here}", f"use -n {asked}{on_hosts}")
