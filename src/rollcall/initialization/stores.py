"""Where the ranks of a world meet: a store over TCP, in a shared file, or in this process for a world of one.

A store may outlive a world: an elastic agent's serves many, a file stays behind after a crash. So rank 0
claims the place for its world under a fresh id, and the others join the claim. Torch's own init methods know
no such claim: a file left over from a crash makes them hang without a word.
"""

import errno
import fcntl
import json
import os
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

from torch.distributed import (
    FileStore,
    HashStore,
    PrefixStore,
    Store,
    TCPStore,
)

from rollcall.errors import UsageError, WorldError
from rollcall.initialization.waiting import poll, run_within
from rollcall.ports import EVERYWHERE, find_holder, listen, resolve
from rollcall.world import get_hostname, get_process_id

# A name may come up late (Kubernetes makes them as pods start), a typing error never does.
RESOLVE_S = 30.0
RIVAL_S = 2.0

# One server for each address, for the life of this process: a rank that comes back for a second world must
# not find the port still held by the first one's store, which a group somewhere may keep alive.
_servers: dict[tuple[str, int], TCPStore] = {}
# Worlds this process has been in: their claims may still stand for a moment when it comes back.
_left: set[str] = set()


@dataclass(frozen=True)
class Claim:
    """What rank 0 says when it opens a world."""

    rollcall: str  # the id of the world; the name of the field marks the file as ours
    world_size: int
    host: str
    pid: int

    def to_json(self) -> str:
        return json.dumps(asdict(self)) + "\n"


@dataclass(frozen=True)
class Meeting:
    """A store that belongs to one world, and how to leave it."""

    store: Store
    claim: Claim
    serves: bool  # the store lives in this process: the others lose it when this process ends
    leave: Callable[[bool], None]  # with whether this rank is the last one that needs the place


@dataclass(frozen=True)
class Spot:
    """What a rank must know to find the others."""

    rank: int
    world_size: int
    attempt: int = 0
    agent_store: bool = False
    one_host: bool = False


def meet_alone() -> Meeting:
    claim = _make_claim(1)
    return Meeting(HashStore(), claim, serves=False, leave=lambda last: None)


def meet_over_tcp(spot: Spot, host: str, port: int, deadline: float) -> Meeting:
    """Rank 0 serves the store, unless an elastic agent already does."""
    serves = spot.rank == 0 and not spot.agent_store
    base = _serve(spot, host, port) if serves else _connect(spot, host, port, deadline)
    root = PrefixStore(f"rollcall/attempt-{spot.attempt}", base)
    claim = _claim_store(root, spot) if spot.rank == 0 else _join_store(root, spot, deadline)

    def leave(last: bool) -> None:
        _left.add(claim.rollcall)
        if spot.rank == 0:
            root.compare_set("world", claim.to_json(), "")

    return Meeting(PrefixStore(claim.rollcall, root), claim, serves, leave)


def meet_in_file(spot: Spot, path: Path, deadline: float) -> Meeting:
    """Rank 0 alone makes the file and locks it: whatever is there before it is left over."""
    mine = path.with_name(f"{path.name}.attempt-{spot.attempt}") if spot.attempt else path
    if not path.parent.is_dir():
        raise UsageError(f"folder {path.parent} of the file:// store does not exist: make it, or use another")
    lock = None
    if spot.rank == 0:
        _clear_attempts(path, spot.attempt)
        lock, claim = _claim_file(mine, spot.world_size, deadline)
    else:
        claim = _join_file(mine, spot, deadline)
    data = _data_path(mine, claim)

    def leave(last: bool) -> None:
        _left.add(claim.rollcall)
        if last:
            mine.unlink(missing_ok=True)
        if not mine.exists():  # a late rank's store may have made the data anew
            data.unlink(missing_ok=True)
        if lock is not None:
            os.close(lock)

    try:
        store = FileStore(str(data), spot.world_size)
    except RuntimeError as error:
        raise UsageError(f"file:// store {data} cannot be opened ({error}): use another path") from error
    return Meeting(PrefixStore(claim.rollcall, store), claim, serves=False, leave=leave)


def _make_claim(world_size: int) -> Claim:
    return Claim(secrets.token_hex(6), world_size, get_hostname(), get_process_id())


# ---- over TCP


def _serve(spot: Spot, host: str, port: int) -> Store:
    _, address = resolve(host)
    if (address, port) in _servers:
        return _servers[address, port]
    # Beyond this host the name may mean another address than here (Debian's 127.0.1.1): take them all.
    stays_here = spot.one_host or address.startswith("127.") or address == "::1"
    try:
        listener = listen(address if stays_here else EVERYWHERE, port)
    except UsageError as error:
        _refuse_rival(spot, address, port)
        raise UsageError(f"rank 0 cannot open its store: {error} (master_port or MASTER_PORT)") from error
    _servers[address, port] = TCPStore(
        address, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    return _servers[address, port]


def _refuse_rival(spot: Spot, address: str, port: int) -> None:
    """Tell the one who holds our port apart: a rank 0 of this very world, or somebody else."""
    holder = find_holder(port)
    # Torch's client is noisy and slow on a server that is no store: ask Pythons only.
    if holder is None or not holder.name().startswith(("python", "pt_")):
        return

    def ask() -> Claim | None:
        store = TCPStore(address, port, wait_for_workers=False, timeout=timedelta(seconds=RIVAL_S))
        root = PrefixStore(f"rollcall/attempt-{spot.attempt}", store)
        return _read_claim(root.get("world")) if root.check(["world"]) else None

    try:
        # Torch waits for ever for one who takes the connection and says nothing.
        claim = run_within(ask, RIVAL_S)
    except (RuntimeError, TimeoutError):
        return
    if claim is not None:
        raise _doubled(claim)


def _doubled(claim: Claim) -> WorldError:
    return WorldError(
        f"rank 0 is there twice: process {claim.pid} on {claim.host}, and process {get_process_id()} on "
        f"{get_hostname()}: give every process a rank of its own"
    )


def _connect(spot: Spot, host: str, port: int, deadline: float) -> Store:
    begun = time.monotonic()
    last: list[Exception] = []

    def try_once() -> Store | None:
        try:
            _, address = resolve(host)
        except UsageError:
            if time.monotonic() - begun > RESOLVE_S:
                raise
            return None
        left_s = max(deadline - time.monotonic(), 0.1)
        try:
            # A plain socket first: torch's client writes a stack to stderr each time nobody answers.
            socket.create_connection((address, port), timeout=min(left_s, 5.0)).close()
            timeout = timedelta(seconds=left_s)
            return TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=timeout)
        except (OSError, RuntimeError) as error:
            last[:] = [error]
            return None

    store = poll(try_once, deadline)
    if store is None:
        who = "the agent's store" if spot.agent_store else "rank 0"
        why = str(last[0]).splitlines()[0] if last else "no address"
        raise WorldError(
            f"rank {spot.rank} on {get_hostname()} could not reach {who} at {host}:{port} for "
            f"{time.monotonic() - begun:.0f} s ({why}): {who} has perhaps not started; "
            "start it, or correct MASTER_ADDR and MASTER_PORT"
        )
    return store


def _claim_store(root: Store, spot: Spot) -> Claim:
    claim = _make_claim(spot.world_size)
    there = root.compare_set("world", "", claim.to_json()).decode()
    if there == claim.to_json():
        return claim
    other = _read_claim(there.encode())
    if other is not None and (other.host, other.pid) != (claim.host, claim.pid):
        raise _doubled(other)
    root.set("world", claim.to_json())  # our own, of a world that did not come together
    return claim


def _join_store(root: Store, spot: Spot, deadline: float) -> Claim:
    # Whoever waits says so: if rank 0 never comes, the others can still tell who else is missing.
    root.set(f"waiting/{spot.rank}", get_hostname())

    def read() -> Claim | None:
        claim = _read_claim(root.get("world")) if root.check(["world"]) else None
        return None if claim is None or claim.rollcall in _left else claim

    begun = time.monotonic()
    claim = poll(read, deadline)
    if claim is None:
        absent = [str(rank) for rank in range(1, spot.world_size) if not root.check([f"waiting/{rank}"])]
        others = f", nor did ranks {', '.join(absent)}" if absent else "; all others are waiting"
        raise WorldError(
            f"rank 0 did not come within {time.monotonic() - begun:.0f} s{others}: "
            "see whether rank 0 has failed before rollcall.init"
        )
    root.delete_key(f"waiting/{spot.rank}")
    return claim


def _read_claim(data: bytes) -> Claim | None:
    return Claim(**json.loads(data)) if data else None


# ---- in a file


def _data_path(path: Path, claim: Claim) -> Path:
    return path.with_name(f"{path.name}.{claim.rollcall}")


def _claim_file(path: Path, world_size: int, deadline: float) -> tuple[int, Claim]:
    claim = _make_claim(world_size)

    def create() -> int | None:
        try:
            return os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
        except FileExistsError:
            there = _read_file(path)
            if there is not None and there.rollcall in _left:
                return None  # our last world: the others are still leaving it
            raise _left_over(path, there) from None
        except OSError as error:
            raise UsageError(
                f"file:// store {path} cannot be made ({os.strerror(error.errno or 0)}): use another path"
            ) from error

    lock = poll(create, deadline)
    if lock is None:
        raise WorldError(f"{path} is still in use by this process's last world: some rank has not left it")
    try:
        # The kernel drops the lock however we end, SIGKILL included: a file without it is left over. It is
        # not inherited by fork, so no data loader's worker can keep it.
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Only now: an empty file is one in the making, to be waited for.
        os.write(lock, claim.to_json().encode())
    except OSError as error:
        os.close(lock)
        path.unlink(missing_ok=True)
        raise UsageError(
            f"file:// store {path} is on a file system without locks ({error.strerror}): use another path"
        ) from error
    return lock, claim


def _join_file(path: Path, spot: Spot, deadline: float) -> Claim:
    def read() -> Claim | None:
        claim = _read_file(path)
        if claim is None or claim.rollcall in _left:
            return None
        if not _is_locked(path) and _read_file(path) == claim:
            raise _left_over(path, claim)
        return claim

    begun = time.monotonic()
    claim = poll(read, deadline)
    if claim is None:
        raise WorldError(
            f"rank 0 did not come to {path} within {time.monotonic() - begun:.0f} s, as rank {spot.rank} on "
            f"{get_hostname()} sees it: start rank 0, or use a path that all hosts share"
        )
    return claim


def _read_file(path: Path) -> Claim | None:
    """The claim in a file; None where there is no file, or one in the making."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"file:// store {path} cannot be read ({error.strerror}): use another") from error
    if not data:
        return None
    try:
        return Claim(**json.loads(data))
    except (ValueError, TypeError):
        raise UsageError(f"{path} is there already and is no store of rollcall's: use another path") from None


def _is_locked(path: Path) -> bool:
    """Whether a living rank 0 holds the file; asked by a shared lock: askers do not see each other."""
    try:
        with open(path, "rb") as file:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError as error:
        return error.errno in (errno.EACCES, errno.EAGAIN)
    return False


def _left_over(path: Path, claim: Claim | None) -> UsageError | WorldError:
    if claim is not None and _is_locked(path):
        return _doubled(claim)
    of = f", of process {claim.pid} on {claim.host}" if claim else ""
    data = f" {_data_path(path, claim)}" if claim else ""
    return UsageError(
        f"file:// store {path} is left over from an earlier run{of}: remove it (rm -f {path}{data}), or use a new path"
    )


def _clear_attempts(path: Path, attempt: int) -> None:
    """The first attempt must find no other's file; a restart removes those before it, of dead ranks."""
    stale = sorted(path.parent.glob(f"{path.name}.attempt-[0-9]*"))
    if attempt == 0:
        claims = [file for file in stale if file.suffix.removeprefix(".attempt-").isdigit()]
        if claims:
            raise _left_over(claims[0], _read_file(claims[0]))
        return
    earlier = [path, *(path.with_name(f"{path.name}.attempt-{n}") for n in range(1, attempt))]
    for file in earlier:
        claim = _read_file(file)
        if claim is not None and not _is_locked(file):
            file.unlink(missing_ok=True)
            _data_path(file, claim).unlink(missing_ok=True)
