"""`rollcall.init`: from whatever started this process to a complete process group, or one sentence about what failed.

find the rank → open the store → call the roll → make the group; and the teardown, which cannot hang.
"""

import atexit
import ctypes
import os
import sys
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import torch
import torch.distributed as dist

from rollcall.compat import gloo_listener, torch_timeouts
from rollcall.compat.gloo_exit import settle
from rollcall.compat.torch_groups import all_groups
from rollcall.errors import UsageError, WorldError, install_error_hook, say
from rollcall.initialization import environment
from rollcall.initialization.environment import RankAssignment
from rollcall.initialization.roll_call import LEAVE_S, Decision, RollCall, leave_store, make_registration
from rollcall.initialization.stores import WorldStore, open_file_store, open_local_store, open_tcp_store
from rollcall.initialization.waiting import SYSTEM_TIME, poll, run_with_timeout
from rollcall.logs import console_logger
from rollcall.torch_version import refuse_older
from rollcall.world import RankInfo, World, get_hostname, get_process_id

KNOWN_METHODS = "env://, tcp://host:port, file:///path"
KNOWN_BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl")
# After a failure the other ranks may be dead or blocked: a teardown that takes longer will not end.
TEARDOWN_S = 5.0
_CONNECTED = "connected"  # in the store: how many ranks have connected to all others


@dataclass(frozen=True)
class InitMethod:
    """An init method's URL, parsed."""

    scheme: str
    host: str = ""
    port: int = 0
    path: Path = Path()


def init(
    backend: str | None = None,
    init_method: str = "env://",
    rank: int | None = None,
    world_size: int | None = None,
    master_addr: str | None = None,
    master_port: int | None = None,
    timeout_s: float = 300.0,
    record: bool | None = None,
) -> World:
    """Find out which rank this process is, wait for the other ranks, and make the group.

    `record=True` records every op for `rollcall explain` under any launcher; ranks of `rollcall run` are recorded
    anyway, unless it has `--no-record`.
    `timeout_s` limits how long the ranks may take to come together. The ops of the group keep torch's own
    time limits: a rank may well evaluate for longer than it may take to start.
    """
    install_error_hook()
    _check_call(timeout_s, backend)
    _release_kept_groups()
    begun = time.monotonic()
    assignment = environment.find_assignment(
        os.environ,
        rank=rank,
        world_size=world_size,
        master_addr=master_addr,
        master_port=master_port,
        spawn_index=environment.find_spawn_index(),
        count_gpus=torch.cuda.device_count,
    )
    method = read_method(init_method, assignment)
    alone = assignment.world_size == 1 and method.scheme == "env" and master_addr is None and master_port is None
    gpus = _find_gpus(backend)

    def call_roll() -> tuple[WorldStore, Decision]:
        deadline = begun + timeout_s
        world = open_local_store() if alone else _open_store(method, assignment, deadline)
        try:
            roll_call = RollCall(world, assignment, timeout_s, deadline)
            roll_call.register(make_registration(assignment, backend, gpus))
            return world, roll_call.wait_for_decision()
        except RuntimeError as error:
            raise _store_lost(world, error) from error

    # In a thread: the store of a stopped process (Ctrl-Z) answers no call, and torch waits without a limit.
    try:
        store, decision = run_with_timeout(call_roll, timeout_s + TEARDOWN_S)
    except TimeoutError:
        raise WorldError(
            f"the store at {method.host}:{method.port} accepted the connection and then did not answer for "
            f"{timeout_s:g} s: see whether rank 0 is stopped or overloaded"
        ) from None
    if record or (record is None and environment.wants_recording(os.environ)):
        _record(store, assignment)
    return _make_world(assignment, method, init_method, store, decision, timeout_s)


def _record(store: WorldStore, assignment: RankAssignment) -> None:
    try:
        from rollcall.record import attach  # here: its import puts hooks into torch
    except Exception as error:  # a torch that the recorder does not fit must not keep the program from running
        if assignment.rank == 0:
            say(f"no rank is recorded ({type(error).__name__}: {error})")
        return
    attach.begin(store.store, assignment.rank, assignment.world_size, assignment.attempt)


def read_method(init_method: str, assignment: RankAssignment) -> InitMethod:
    """Parse an init method; `env://` takes the address that the launcher gave."""
    try:
        url = urlparse(init_method)
        port = url.port
    except ValueError as error:
        raise UsageError(f"init_method {init_method!r} cannot be read ({error}): use {KNOWN_METHODS}") from None
    if url.scheme == "env":
        return InitMethod("env", assignment.master_addr, assignment.master_port)
    if url.scheme == "tcp":
        if not url.hostname or not port or url.query:
            raise UsageError(f"init_method is {init_method!r}: expected a host and a port, tcp://host:port")
        return InitMethod("tcp", url.hostname, port)
    if url.scheme == "file":
        if url.netloc or url.path in ("", "/"):
            raise UsageError(f"init_method is {init_method!r}: expected three slashes and a path, file:///path")
        return InitMethod("file", assignment.master_addr, assignment.master_port, Path(url.path))
    raise UsageError(f"init_method is {init_method!r}, which is unknown: use {KNOWN_METHODS}")


def check_backend(backend: str) -> None:
    """Refuse a backend that this build of torch does not have, in plainer words than torch's own."""
    names = [part.rpartition(":")[2].lower() for part in backend.split(",")]
    have = [name for name in KNOWN_BACKENDS if dist.is_backend_available(name)]
    for name in names:
        if not name or not dist.is_backend_available(name):
            why = "torch was built without it" if name in KNOWN_BACKENDS else "there is none of that name"
            raise UsageError(f"backend is {backend!r}, but {why}: this torch has {', '.join(have)}")


def _check_call(timeout_s: float, backend: str | None) -> None:
    refuse_older(str(torch.__version__))
    if not dist.is_available():
        raise UsageError("this torch was built without torch.distributed: install one that has it")
    if not timeout_s > 0:
        raise UsageError(f"timeout_s is {timeout_s}: expected more than 0 seconds")
    if dist.is_initialized():
        raise UsageError("this process has a group already: close its World (or destroy the group) first")
    if backend is not None:
        check_backend(backend)


def _find_gpus(backend: str | None) -> tuple[str, ...]:
    """The GPUs that this process registers: the roll call checks that nccl has one for each rank."""
    wants_gpus = dist.is_nccl_available() if backend is None else "nccl" in backend.lower()
    return environment.name_gpus(os.environ, torch.cuda.device_count()) if wants_gpus else ()


def _open_store(method: InitMethod, assignment: RankAssignment, deadline: float) -> WorldStore:
    if method.scheme == "file":
        return open_file_store(assignment, method.path, deadline)
    at_agent = (method.host, method.port) == (assignment.master_addr, assignment.master_port)
    assignment = replace(assignment, agent_store=assignment.agent_store and at_agent)
    return open_tcp_store(assignment, method.host, method.port, deadline)


def _store_lost(world: WorldStore, error: RuntimeError) -> WorldError:
    claim = world.claim
    return WorldError(
        f"the store was lost before all ranks had come ({str(error).splitlines()[0]}): "
        f"see why rank 0 ended (process {claim.pid} on {claim.host})"
    )


def _make_world(
    assignment: RankAssignment,
    method: InitMethod,
    init_method: str,
    store: WorldStore,
    decision: Decision,
    timeout_s: float,
) -> World:
    rank, world_size = assignment.rank, assignment.world_size
    gpu, placement = decision.gpus[rank], decision.placements[rank]
    device = torch.device("cpu") if gpu is None else torch.device("cuda", gpu)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    hook = sys.excepthook
    try:
        _make_group(assignment, store, decision.backend, device, timeout_s)
    except (RuntimeError, ValueError) as error:
        if dist.is_initialized():
            dist.destroy_process_group()
        store.leave(rank == 0)
        raise WorldError(
            f"all {world_size} ranks came, but {decision.backend} could not connect them "
            f"({str(error).splitlines()[0]}): see whether a rank has died, or a firewall is in the way"
        ) from error
    # With the group torch installs a hook of its own, which would hide our sentence: ours must be the outer one.
    install_error_hook()
    info = RankInfo(
        master_addr=method.host,
        master_port=str(method.port),
        nnodes=placement.nnodes,
        nproc_per_node=placement.local_world_size,
        node_rank=placement.node_rank,
        world_size=world_size,
        backend=decision.backend,
        init_method=init_method,
        global_rank=rank,
        local_world_size=placement.local_world_size,
        local_rank=placement.local_rank,
        hostname=get_hostname(),
        process_id=get_process_id(),
    )
    logger = console_logger(rank, name_rank=world_size > 1 and not environment.is_ours(os.environ))
    return World(info, device, logger, Teardown(store, info, timeout_s, hook))


def _make_group(
    assignment: RankAssignment, world: WorldStore, backend: str, device: torch.device, timeout_s: float
) -> None:
    if backend == "mpi":  # the MPI runtime numbers the ranks itself, and warns of any other numbers
        dist.init_process_group("mpi")
        if dist.get_rank() != assignment.rank:
            raise RuntimeError(f"MPI numbers rank {assignment.rank} as {dist.get_rank()}")
        return
    if "gloo" in backend:
        gloo_listener.install()
    store = dist.PrefixStore("group", world.store)
    store.set_timeout(timedelta(seconds=timeout_s))
    dist.init_process_group(
        backend,
        store=store,
        rank=assignment.rank,
        world_size=assignment.world_size,
        timeout=timedelta(seconds=timeout_s),
        device_id=device if device.type == "cuda" else None,
    )
    world.store.add(_CONNECTED, 1)
    # The connections are made; from now on torch's own limits hold.
    limit = torch_timeouts.default_limit(backend)
    if limit is not None:
        torch_timeouts.limit_ops(dist.group.WORLD, limit)
        store.set_timeout(limit)


class Teardown:
    """Leaves a world: once, also when other ranks are dead, also when the user has destroyed the group."""

    def __init__(self, world: WorldStore, info: RankInfo, timeout_s: float, hook_before: Any) -> None:
        self._world, self._info, self._timeout_s = world, info, timeout_s
        self._hook_before = hook_before
        self._hook = sys.excepthook
        self._pid = os.getpid()
        self._done = False
        # Weak: the group must end when torch drops it, not when this object ends.
        self._group = weakref.ref(dist.group.WORLD)
        atexit.register(self, True)

    def __call__(self, failed: bool) -> None:
        if self._done or os.getpid() != self._pid:  # a forked DataLoader worker has a copy of this object
            return
        self._done = True
        atexit.unregister(self)
        if sys.excepthook is self._hook:
            sys.excepthook = self._hook_before
        if failed:
            _leak(all_groups())
        limit_s = TEARDOWN_S if failed else self._timeout_s
        if self._try("its group", lambda: self._destroy(failed), limit_s, quiet=failed):
            leave = partial(leave_store, self._world, self._info.global_rank, self._info.world_size, wait=not failed)
            self._try("its store", leave, LEAVE_S + TEARDOWN_S, quiet=failed)

    def _try(self, what: str, step: Callable[[], None], limit_s: float, quiet: bool) -> bool:
        """Take one step of the teardown; an error in it is printed, never raised."""
        try:
            run_with_timeout(step, limit_s)
            return True
        except TimeoutError:
            problem = f"it did not end within {limit_s:g} s"
        except (RuntimeError, ValueError, OSError) as error:
            problem = str(error).partition("\n")[0]
        if not quiet:
            say(f"rank {self._info.global_rank} could not close {what}: {problem}")
        return False

    def _destroy(self, failed: bool) -> None:
        group = self._group()
        # The user may have destroyed it, and made another.
        if group is None or not dist.is_initialized() or dist.group.WORLD is not group:
            return
        if not failed:
            self._wait_until_all_connected()
        if failed and "nccl" in self._info.backend:
            group.abort()  # a flush would wait for ranks that are gone
        groups = [weakref.ref(each) for each in all_groups()]
        del group  # the last reference ends here, in this thread: gloo's destructor waits for pending ops
        settle()
        dist.destroy_process_group()
        _keep_until_next_init([each for each in (ref() for ref in groups) if each is not None])

    def _wait_until_all_connected(self) -> None:
        """Gloo connects every rank to every other: a rank that is done early must not close its connections yet."""
        if self._info.backend != "mpi":
            connected = partial(self._world.store.add, _CONNECTED, 0)
            poll(lambda: connected() >= self._info.world_size or None, SYSTEM_TIME.now() + TEARDOWN_S)


def _leak(groups: list[Any]) -> None:
    """Never let gloo's destructor run: it waits for pending ops, in this thread or when the interpreter ends.

    The kernel closes the connections when the process ends, and the other ranks notice.
    """
    for group in groups:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


_kept: list[Any] = []


def _keep_until_next_init(groups: list[Any]) -> None:
    """Keep the groups that a model or a mesh still refers to.

    A DDP module that drops the last reference would run gloo's destructor while it holds the GIL, and the destructor
    would wait for a thread of gloo that needs the GIL to release its last tensor: a deadlock. By the next
    `rollcall.init` those threads have long been idle.
    """
    _leak(groups)  # also when the interpreter ends
    _kept.extend(groups)


def _release_kept_groups() -> None:
    while _kept:
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(_kept[-1]))
        _kept.pop()
