"""`rollcall.init`: from whatever started this process to a process group that is complete, or one sentence.

find the place → open the store → call the roll → make the group; and the way back, which cannot hang.
"""

import atexit
import ctypes
import os
import sys
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import torch
import torch.distributed as dist

from rollcall.compat import gloo_listener
from rollcall.compat.gloo_exit import settle
from rollcall.errors import UsageError, WorldError, say, speak_plainly
from rollcall.initialization import environment
from rollcall.initialization.environment import Place
from rollcall.initialization.roll_call import FAREWELL_S, Verdict, call_roll, fill_card, say_goodbye
from rollcall.initialization.stores import Meeting, Spot, meet_alone, meet_in_file, meet_over_tcp
from rollcall.initialization.waiting import run_within
from rollcall.logs import console_logger
from rollcall.world import RankInfo, World, get_hostname, get_process_id

KNOWN_METHODS = "env://, tcp://host:port, file:///path"
KNOWN_BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl")
# After a failure the other ranks may be dead or deaf: what takes longer than this will not come.
ABANDON_S = 5.0
_CONNECT_LOOK_S = 0.002


@dataclass(frozen=True)
class Method:
    """An init method, read: where to meet."""

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
    """Find out who started this process, meet the other ranks, and make the group.

    `record=True` records every op for `rollcall explain`, whoever started this process; ranks of `rollcall run` are
    recorded anyway, unless it was told `--no-record`.
    `timeout_s` is how long the world may take to come together. The ops of the group keep torch's own
    time limits: a rank may well evaluate for longer than it may take to start.
    """
    speak_plainly()
    _check_call(timeout_s)
    _let_go()
    begun = time.monotonic()
    place = environment.find_place(
        os.environ,
        rank=rank,
        world_size=world_size,
        master_addr=master_addr,
        master_port=master_port,
        spawn_index=environment.find_spawn_index(),
        count_gpus=torch.cuda.device_count,
    )
    method = read_method(init_method, place)
    alone = place.world_size == 1 and method.scheme == "env" and master_addr is None and master_port is None
    gpus = _find_gpus(backend, place)

    def gather() -> tuple[Meeting, Verdict]:
        deadline = begun + timeout_s
        meeting = meet_alone() if alone else _meet(method, place, deadline)
        try:
            card = fill_card(place, backend, gpus)
            return meeting, call_roll(meeting, place, card, timeout_s, deadline)
        except RuntimeError as error:
            raise _lost(meeting, error) from error

    # In a thread: a store whose process is stopped (Ctrl-Z) answers no call, and torch waits for ever.
    try:
        meeting, verdict = run_within(gather, timeout_s + ABANDON_S)
    except TimeoutError:
        raise WorldError(
            f"the store at {method.host}:{method.port} took the connection and then did not answer for "
            f"{timeout_s:g} s: see whether rank 0 is stopped or overloaded"
        ) from None
    if record or (record is None and environment.wants_recording(os.environ)):
        from rollcall.record import attach  # here: it puts hooks into torch

        attach.begin(meeting.store, place.rank, place.world_size, place.attempt)
    return _make_group(place, method, init_method, meeting, verdict, timeout_s)


def read_method(init_method: str, place: Place) -> Method:
    """Read an init method; `env://` takes the address from the place."""
    try:
        url = urlparse(init_method)
        port = url.port
    except ValueError as error:
        raise UsageError(f"init_method {init_method!r} cannot be read ({error}): use {KNOWN_METHODS}") from None
    if url.scheme == "env":
        return Method("env", place.master_addr, place.master_port)
    if url.scheme == "tcp":
        if not url.hostname or not port or url.query:
            raise UsageError(f"init_method is {init_method!r}: expected a host and a port, tcp://host:port")
        return Method("tcp", url.hostname, port)
    if url.scheme == "file":
        if url.netloc or url.path in ("", "/"):
            raise UsageError(f"init_method is {init_method!r}: expected three slashes and a path, file:///path")
        return Method("file", place.master_addr, place.master_port, Path(url.path))
    raise UsageError(f"init_method is {init_method!r}, which nobody knows: use {KNOWN_METHODS}")


def check_backend(backend: str) -> None:
    """Refuse a backend that this build of torch has not, before torch does so in its own way."""
    names = [part.rpartition(":")[2].lower() for part in backend.split(",")]
    have = [name for name in KNOWN_BACKENDS if dist.is_backend_available(name)]
    for name in names:
        if not name or not dist.is_backend_available(name):
            why = "torch was built without it" if name in KNOWN_BACKENDS else "nobody knows it"
            raise UsageError(f"backend is {backend!r}, but {why}: this torch has {', '.join(have)}")


def _check_call(timeout_s: float) -> None:
    if not dist.is_available():
        raise UsageError("this torch was built without torch.distributed: install one that has it")
    if not timeout_s > 0:
        raise UsageError(f"timeout_s is {timeout_s}: expected more than 0 seconds")
    if dist.is_initialized():
        raise UsageError("this process has a group already: close its World (or destroy the group) first")


def _find_gpus(backend: str | None, place: Place) -> tuple[str, ...]:
    """The GPUs to announce in the roll call; under nccl, what cannot work is refused at once."""
    if backend is not None:
        check_backend(backend)
        if "nccl" not in backend.lower():
            return ()
    elif not dist.is_nccl_available():
        return ()
    count = torch.cuda.device_count()
    if backend is None:
        return environment.name_gpus(os.environ, count)
    if count == 0:
        raise UsageError("backend is 'nccl', but this host shows no GPU: use gloo, or a host that has one")
    ranks = place.local_world_size or 1
    # One GPU in sight of each of many ranks may be another one for each: the roll call compares them.
    each_its_own = count == 1 and environment.has_own_gpus(os.environ)
    if ranks > count and not each_its_own:
        raise UsageError(
            f"{ranks} ranks are on this host, but {count} GPU{'s' * (count > 1)}: nccl needs one for each "
            f"rank; start {count} here, or use gloo"
        )
    return environment.name_gpus(os.environ, count)


def _meet(method: Method, place: Place, deadline: float) -> Meeting:
    at_agent = place.agent_store and (method.host, method.port) == (place.master_addr, place.master_port)
    spot = Spot(place.rank, place.world_size, place.attempt, at_agent, one_host=place.nnodes == 1)
    if method.scheme == "file":
        return meet_in_file(spot, method.path, deadline)
    return meet_over_tcp(spot, method.host, method.port, deadline)


def _lost(meeting: Meeting, error: RuntimeError) -> WorldError:
    claim = meeting.claim
    return WorldError(
        f"the store was lost before all ranks had come ({str(error).splitlines()[0]}): "
        f"see why rank 0 ended (process {claim.pid} on {claim.host})"
    )


def _make_group(
    place: Place, method: Method, init_method: str, meeting: Meeting, verdict: Verdict, timeout_s: float
) -> World:
    device = torch.device("cpu") if verdict.gpu is None else torch.device("cuda", verdict.gpu)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    hook = sys.excepthook
    try:
        _call_torch(place, meeting, verdict.backend, device, timeout_s)
    except (RuntimeError, ValueError) as error:
        if dist.is_initialized():
            dist.destroy_process_group()
        meeting.leave(place.rank == 0)
        raise WorldError(
            f"all {place.world_size} ranks came, but {verdict.backend} could not connect them "
            f"({str(error).splitlines()[0]}): see whether a rank has died, or a firewall is in the way"
        ) from error
    # Torch's own hook, new with the group, would swallow our sentence: ours must be the outer one.
    speak_plainly()
    seat = verdict.seat
    info = RankInfo(
        master_addr=method.host,
        master_port=str(method.port),
        nnodes=seat.nnodes,
        nproc_per_node=seat.local_world_size,
        node_rank=seat.node_rank,
        world_size=place.world_size,
        backend=verdict.backend,
        init_method=init_method,
        global_rank=place.rank,
        local_world_size=seat.local_world_size,
        local_rank=seat.local_rank,
        hostname=get_hostname(),
        process_id=get_process_id(),
    )
    logger = console_logger(place.rank, name_rank=place.world_size > 1 and not environment.is_ours(os.environ))
    leave = Exit(meeting, place.rank, place.world_size, verdict.backend, timeout_s, hook)
    return World(info, device, logger, leave)


def _call_torch(place: Place, meeting: Meeting, backend: str, device: torch.device, timeout_s: float) -> None:
    if backend == "mpi":  # the MPI runtime numbers the ranks itself, and warns of any other numbers
        dist.init_process_group("mpi")
        if dist.get_rank() != place.rank:
            raise RuntimeError(f"MPI calls rank {place.rank} {dist.get_rank()}")
        return
    if "gloo" in backend:
        gloo_listener.put_up()
    store = dist.PrefixStore("group", meeting.store)
    store.set_timeout(timedelta(seconds=timeout_s))
    dist.init_process_group(
        backend,
        store=store,
        rank=place.rank,
        world_size=place.world_size,
        timeout=timedelta(seconds=timeout_s),
        device_id=device if device.type == "cuda" else None,
    )
    meeting.store.add(_CONNECTED, 1)
    # The connections are there; from now on torch's own limits.
    limit = dist.distributed_c10d._get_default_timeout(dist.Backend(backend))
    _limit_ops(limit)
    store.set_timeout(limit)


def _limit_ops(limit: timedelta) -> None:
    """As torch's _set_pg_timeout does, which torch 2.15 deprecates for a function that older ones lack."""
    group: Any = dist.group.WORLD
    for device in group._device_types:
        backend = group._get_backend(device)
        if hasattr(backend, "_set_default_timeout"):  # gloo's and nccl's have it
            backend._set_default_timeout(limit)


_CONNECTED = "connected"


class Exit:
    """The way out of a world: once, also when other ranks are dead, also when the group is gone already."""

    def __init__(self, meeting: Meeting, rank: int, world_size: int, backend: str, timeout_s: float, hook: Any) -> None:
        self._meeting = meeting
        self._rank = rank
        self._world_size = world_size
        self._backend = backend
        self._timeout_s = timeout_s
        self._hook_before = hook
        self._hook = sys.excepthook
        self._pid = os.getpid()
        self._done = False
        # Weak: the group must die when torch drops it, not when we do.
        self._group = weakref.ref(dist.group.WORLD)
        atexit.register(self, True)

    def __call__(self, failed: bool) -> None:
        if self._done or os.getpid() != self._pid:  # a forked data loader's worker has a copy of us
            return
        self._done = True
        atexit.unregister(self)
        if sys.excepthook is self._hook:
            sys.excepthook = self._hook_before
        if failed:
            _keep_for_ever(self._list_groups())
        limit_s = ABANDON_S if failed else self._timeout_s
        ended = self._try("its group", lambda: self._destroy(failed), limit_s, quiet=failed)
        if ended:
            goodbye = partial(say_goodbye, self._meeting, self._rank, self._world_size, wait=not failed)
            self._try("its store", goodbye, FAREWELL_S + ABANDON_S, quiet=failed)

    def _try(self, what: str, step: Callable[[], None], limit_s: float, quiet: bool) -> bool:
        """Do a step of leaving; what goes wrong with it is worth a line, never an exception of its own."""
        try:
            run_within(step, limit_s)
            return True
        except TimeoutError:
            problem = f"it did not end within {limit_s:g} s"
        except (RuntimeError, ValueError, OSError) as error:
            problem = str(error).partition("\n")[0]
        if not quiet:
            say(f"rank {self._rank} leaves {what} behind: {problem}")
        return False

    def _destroy(self, failed: bool) -> None:
        group = self._group()
        # The user may have destroyed it, and made another.
        if group is None or not dist.is_initialized() or dist.group.WORLD is not group:
            return
        if not failed:
            self._let_the_others_connect()
        if failed and "nccl" in self._backend:
            group.abort()  # a flush would wait for ranks that are gone
        groups = [weakref.ref(each) for each in self._list_groups()]
        del group  # the last reference goes here, in this thread: gloo's destructor waits for pending ops
        settle()
        dist.destroy_process_group()
        _keep_for_now([each for each in (ref() for ref in groups) if each is not None])

    def _let_the_others_connect(self) -> None:
        """Gloo connects everyone to everyone, and who is done early must not hang up on those who are not."""
        deadline = time.monotonic() + ABANDON_S
        while self._backend != "mpi" and time.monotonic() < deadline:
            if self._meeting.store.add(_CONNECTED, 0) >= self._world_size:
                return
            time.sleep(_CONNECT_LOOK_S)

    def _list_groups(self) -> list[Any]:
        if not dist.is_initialized():
            return []
        return list(dist.distributed_c10d._world.pg_map)


def _keep_for_ever(groups: list[Any]) -> None:
    """Never let gloo's destructor run: it waits for pending ops, in this thread or at the interpreter's end.

    The kernel closes the connections when the process ends, and the other ranks notice.
    """
    for group in groups:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


_kept: list[Any] = []


def _keep_for_now(groups: list[Any]) -> None:
    """Groups that a model or a mesh still has. A DDP module that dies with the last reference would run the destructor
    while it holds the GIL, and wait for a thread of gloo that needs the GIL to let its last tensor go: for ever.

    When the next world begins, those threads have long been idle.
    """
    _keep_for_ever(groups)  # also at the interpreter's end
    _kept.extend(groups)


def _let_go() -> None:
    while _kept:
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(_kept[-1]))
        _kept.pop()
