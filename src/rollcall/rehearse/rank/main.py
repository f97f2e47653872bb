"""Becomes one rank of the rehearsed world: its environment, its device, its recording; then runs the script.

Runs in a fork of the server, where torch is imported already.
"""

import atexit
import functools
import os
import pickle
import shutil
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch.distributed as dist
from torch.distributed import device_mesh, distributed_c10d

from rollcall.protocol.plan import LOOPBACK, Program
from rollcall.protocol.torchrun_env import rank_env
from rollcall.record import recorder
from rollcall.record.hooks import functional
from rollcall.rehearse import randomness
from rollcall.rehearse.memory import cuda_functions
from rollcall.rehearse.memory.allocations import Allocations
from rollcall.rehearse.memory.use import usable_bytes
from rollcall.rehearse.network.marks import note_steps
from rollcall.rehearse.rank import (
    clock,
    collectives,
    device,
    files,
    patches,
    saving,
    starting,
    steps,
    store,
    unsupported,
    values,
)
from rollcall.rehearse.rank.tensors import PretendedDevice, is_pretended
from rollcall.rehearse.rank.unsupported import Unsupported
from rollcall.rehearse.settings import RehearsalSettings
from rollcall.runs import rings_of
from rollcall.worker.main import run_here

_NO_PORT = 1  # nothing listens there: a rehearsed rank opens no connection


def become(request: dict[str, Any], _fds: list[int]) -> NoReturn:
    settings: RehearsalSettings = pickle.loads(bytes.fromhex(request["settings"]))
    rank, folder = int(request["rank"]), Path(request["folder"])
    os.environ.clear()
    os.environ.update({**request["env"], **_environment(settings, rank)})
    _use_temporary_folder(request["temporary"])
    os.chdir(request["cwd"])
    _use_known_values(settings, request["table"])
    allocations = Allocations(usable_bytes(settings.gpu), settings.gpu.capability, settings.logs_memory)
    marks: list[int] = []
    _write_at_end(Path(request["result"]), allocations, marks)
    device.install(settings.gpu, min(settings.gpus_per_host, settings.world_size))
    allocations.install()
    cuda_functions.install(allocations, settings.gpu.capacity_bytes, usable_bytes(settings.gpu))
    mode = PretendedDevice(allocations)
    patches.install(mode.data, settings.gpu.capability)
    saving.install(mode)
    _pretend_process_groups(settings.world_size)
    starting.install(settings)
    _record(folder, rank, settings.world_size)
    note_steps(rings_of(folder, 0) / f"rank-{rank}.ring", marks)
    steps.stop_after(settings.steps)
    written = folder / "files"
    first = written / f"rank-{settings.ranks[0]}"
    files.install(written / f"rank-{rank}", first, request["temporary"], collectives.count_ops)
    clock.install(int(request["began_ns"]))
    mode.enter_all_threads()
    randomness.replace_system_source(rank)
    steps.stop_without_end(settings.limit_s)
    unsupported.watch_for_programs()
    unsupported.watch_for_uncaught()
    run_here(Program(**request["program"]), None, functools.partial(randomness.seed, rank))


def _environment(settings: RehearsalSettings, rank: int) -> dict[str, str]:
    each = settings.gpus_per_host
    return rank_env(
        rank=rank,
        world_size=settings.world_size,
        local_rank=rank % each,
        local_world_size=min(each, settings.world_size - rank // each * each),
        node_rank=rank // each,
        nnodes=settings.hosts,
        master_addr=LOOPBACK,
        master_port=_NO_PORT,
        run_id="rehearsal",
    )


def _use_temporary_folder(path: str) -> None:
    """The ring is new in each pass."""
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    os.environ["TMPDIR"] = tempfile.tempdir = path


def _use_known_values(settings: RehearsalSettings, table: str) -> None:
    values.use_notes(values.Notes(dict(settings.assumptions)))
    known: collectives.Table = pickle.loads(Path(table).read_bytes()) if table else {}
    collectives.use_exchange(collectives.Exchange(known))


def _write_at_end(path: Path, allocations: Allocations, marks: list[int]) -> None:
    """Writes what the launcher needs besides the ring."""
    process = os.getpid()

    def write() -> None:
        if os.getpid() != process:  # a forked worker of a DataLoader
            return
        found = {
            "gave": {tuple(key): tuple(given) for key, given in collectives.exchange.gave.items()},
            "took": {tuple(key): tuple(took) for key, took in collectives.exchange.took.items()},
            "is_cut": steps.is_cut,
            "unsupported": unsupported.found,
            "missing": unsupported.missing,
            "marks": marks,
            "memory": allocations.use(),
            "memory_log": allocations.log.events if allocations.log else [],
            "unknowns": [vars(each) for each in values.notes.unknowns.values()],
        }
        fresh = path.with_suffix(".new")
        fresh.write_bytes(pickle.dumps(found))
        fresh.replace(path)

    atexit.register(write)


def _pretend_process_groups(world_size: int) -> None:
    """Makes groups of torch's fake backend, whatever backend is asked for: no op reaches it."""
    init, own_store = dist.init_process_group, store.OwnStore()  # C++ does not keep a store of Python
    modules: tuple[Any, ...] = (dist, distributed_c10d, device_mesh)  # a mesh makes the group of a program without one
    backends: dict[Any, str] = {}  # as they were asked for, by group; of the world by None

    def init_process_group(backend: Any = None, init_method: Any = None, *_: Any, **kwargs: Any) -> None:
        given_rank, given_size = kwargs.get("rank", -1), kwargs.get("world_size", -1)
        rank = int(os.environ["RANK"]) if given_rank in (-1, None) else int(given_rank)
        size = int(os.environ["WORLD_SIZE"]) if given_size in (-1, None) else int(given_size)
        if size < world_size:
            asked = f"init_process_group asks for {size} ranks, but {world_size} are rehearsed"
            raise Unsupported(asked, f"use -n {size}")
        if size > world_size:
            _wait_in_vain(world_size, size)
        init("fake", rank=rank, world_size=size, store=own_store)
        backends[None] = str(backend or "nccl")

    for module in modules:
        module.init_process_group = init_process_group
        for name in ("is_nccl_available", "is_gloo_available", "is_mpi_available"):
            setattr(module, name, lambda: True)
        for name in ("TCPStore", "FileStore"):  # they would connect in C++
            setattr(module, name, store.OwnStore)
    new_group = distributed_c10d._new_group_with_tag

    def new_fake_group(
        ranks: Any = None, timeout: Any = None, backend: Any = None, options: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        for name in ("timeout", "backend", "backend_options", "pg_options", "device_id"):
            kwargs.pop(name, None)
        group = new_group(ranks, None, None, None, *args[:3], **kwargs)
        if backend and isinstance(group, dist.ProcessGroup):
            backends[group] = str(backend)
        return group

    def get_backend(group: Any = None) -> str:
        return backends.get(group, backends.get(None, "nccl"))

    def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        if "gloo" not in get_backend(group):
            raise ValueError("monitored_barrier is only implemented for GLOO backend.")
        of_group: Any = group or dist.group.WORLD
        of_group.monitored_barrier(timeout or timedelta(minutes=30), wait_all_ranks)

    modules[1]._new_group_with_tag = new_fake_group
    modules[0].get_backend = get_backend
    modules[0].monitored_barrier = monitored_barrier


def _wait_in_vain(here: int, world_size: int) -> None:
    """Raises torch's error for ranks that do not come in time; inside of the call, which is recorded."""

    def time_out(*_: Any, **__: Any) -> NoReturn:
        raise dist.DistStoreError(f"Timed out: {here}/{world_size} clients joined.")

    module: Any = distributed_c10d
    module._new_process_group_helper = time_out


def _record(folder: Path, rank: int, world_size: int) -> None:
    """Ops on the device complete at once, so no event of a GPU is waited for. The rank is not sampled either."""
    functional.counts_as_real(is_pretended)
    recording = recorder.begin(folder, rank, world_size, 0)
    recording.rehearse()
    collectives.exchange.count_records = recording.count_records
