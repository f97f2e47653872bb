"""The store that the ranks of a world share: over TCP, in a file, or in this process for a world of one.

A store may outlive a world: an elastic agent's store serves many worlds, and a file stays behind after a crash.
So rank 0 writes a claim with a fresh id into the store, and the others join that claim. Torch's own init
methods have no such claim: a file left over from a crash makes them hang without a message.
"""

import ctypes
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

from torch.distributed import FileStore, HashStore, PrefixStore, Store, TCPStore

from rollcall.errors import UsageError, WorldError
from rollcall.initialization.environment import RankAssignment
from rollcall.initialization.waiting import SYSTEM_TIME, TimeSource, poll, run_with_timeout
from rollcall.ports import EVERYWHERE, find_holder, listen, resolve
from rollcall.world import get_hostname, get_process_id

# A host name may become known late (Kubernetes adds names as pods start); a mistyped one never does.
RESOLVE_S = 30.0
OTHER_STORE_S = 2.0

# One server for each address, for the life of this process: a rank that comes back for a second world must
# not find the port still held by the first world's store, which some group may keep alive.
_servers: dict[tuple[str, int], TCPStore] = {}
# The ids of worlds that this process has left: their claims may remain for a moment when it comes back.
_left: set[str] = set()


@dataclass(frozen=True)
class WorldClaim:
    """What rank 0 writes when it opens a world."""

    rollcall: str  # the id of the world; the name of the field marks the file as ours
    world_size: int
    host: str
    pid: int

    @classmethod
    def new(cls, world_size: int) -> "WorldClaim":
        return cls(secrets.token_hex(6), world_size, get_hostname(), get_process_id())

    @classmethod
    def from_json(cls, data: bytes) -> "WorldClaim | None":
        """None if there is no claim: not yet, or no longer."""
        return cls(**json.loads(data)) if data else None

    def to_json(self) -> str:
        return json.dumps(asdict(self)) + "\n"


@dataclass(frozen=True)
class WorldStore:
    """A store that belongs to one world, and how to leave it."""

    store: Store
    claim: WorldClaim
    leave: Callable[[bool], None]  # takes whether this rank is the last one that needs the store


def open_local_store() -> WorldStore:
    return WorldStore(HashStore(), WorldClaim.new(1), leave=lambda last: None)


def open_tcp_store(assignment: RankAssignment, host: str, port: int, deadline: float) -> WorldStore:
    """Rank 0 serves the store, unless an elastic agent already does."""
    is_first = assignment.rank == 0
    serves = is_first and not assignment.agent_store
    base = _serve(assignment, host, port) if serves else _connect(assignment, host, port, deadline)
    root = _root(base, assignment)
    claim = claim_world(root, assignment) if is_first else join_world(root, assignment, deadline)

    def leave(last: bool) -> None:
        _left.add(claim.rollcall)
        if is_first:
            root.compare_set("world", claim.to_json(), "")

    return WorldStore(PrefixStore(claim.rollcall, root), claim, leave)


def open_file_store(assignment: RankAssignment, path: Path, deadline: float) -> WorldStore:
    """Only rank 0 creates the file, and locks it: a file that exists before is left over."""
    mine = _attempt_path(path, assignment.attempt)
    if not path.parent.is_dir():
        raise UsageError(f"folder {path.parent} of the file:// store does not exist: make it, or use another")
    lock = None
    if assignment.rank == 0:
        _clear_attempts(path, assignment.attempt)
        lock, claim = _claim_file(mine, assignment.world_size, deadline)
    else:
        claim = _join_file(mine, assignment, deadline)
    data = _data_path(mine, claim)

    def leave(last: bool) -> None:
        _left.add(claim.rollcall)
        if last:
            mine.unlink(missing_ok=True)
            data.unlink(missing_ok=True)
        if lock is not None:
            os.close(lock)

    try:
        store = FileStore(str(data), assignment.world_size)
    except RuntimeError as error:
        raise UsageError(f"file:// store {data} cannot be opened ({error}): use another path") from error
    # Never destroyed: FileStore's destructor opens the file once more. Where somebody removes its folder at that
    # moment, it waits for minutes with the GIL held, and then aborts the process.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(store))
    return WorldStore(PrefixStore(claim.rollcall, store), claim, leave)


# ---- over TCP


def _root(base: Store, assignment: RankAssignment) -> Store:
    return PrefixStore(f"rollcall/attempt-{assignment.attempt}", base)


def _serve(assignment: RankAssignment, host: str, port: int) -> Store:
    _, address = resolve(host)
    if (address, port) in _servers:
        return _servers[address, port]
    # On other hosts the name may mean another address than here (Debian's 127.0.1.1): listen on all of them.
    is_local = assignment.nnodes == 1 or address.startswith("127.") or address == "::1"
    try:
        listener = listen(address if is_local else EVERYWHERE, port)
    except UsageError as error:
        _refuse_second_first_rank(assignment, address, port)
        raise UsageError(f"rank 0 cannot open its store: {error} (master_port or MASTER_PORT)") from error
    _servers[address, port] = TCPStore(
        address, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    return _servers[address, port]


def _refuse_second_first_rank(assignment: RankAssignment, address: str, port: int) -> None:
    """Raise if the process that holds our port is a rank 0 of the same world."""
    holder = find_holder(port)
    # Torch's client is noisy and slow with a server that is no store: ask Python processes only.
    if holder is None or not holder.name().startswith(("python", "pt_")):
        return

    def read_claim() -> WorldClaim | None:
        store = TCPStore(address, port, wait_for_workers=False, timeout=timedelta(seconds=OTHER_STORE_S))
        return _read_claim(_root(store, assignment))

    try:
        # Torch waits without a limit for a server that accepts the connection and sends nothing.
        claim = run_with_timeout(read_claim, OTHER_STORE_S)
    except (RuntimeError, TimeoutError):
        return
    if claim is not None:
        raise _first_rank_twice(claim)


def _first_rank_twice(claim: WorldClaim) -> WorldError:
    return WorldError(
        f"rank 0 was started twice: process {claim.pid} on {claim.host}, and process {get_process_id()} on "
        f"{get_hostname()}: give every process a rank of its own"
    )


def _connect(assignment: RankAssignment, host: str, port: int, deadline: float) -> Store:
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
            # A plain socket first: torch's client writes a stack to stderr each time nothing answers.
            socket.create_connection((address, port), timeout=min(left_s, 5.0)).close()
            timeout = timedelta(seconds=left_s)
            return TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=timeout)
        except (OSError, RuntimeError) as error:
            last[:] = [error]
            return None

    store = poll(try_once, deadline)
    if store is None:
        server = "the agent's store" if assignment.agent_store else "rank 0"
        reason = str(last[0]).splitlines()[0] if last else "no address"
        raise WorldError(
            f"rank {assignment.rank} on {get_hostname()} could not reach {server} at {host}:{port} for "
            f"{time.monotonic() - begun:.0f} s ({reason}): {server} has perhaps not started; "
            "start it, or correct MASTER_ADDR and MASTER_PORT"
        )
    return store


def claim_world(root: Store, assignment: RankAssignment) -> WorldClaim:
    """Rank 0 opens a world in the store."""
    claim = WorldClaim.new(assignment.world_size)
    current = WorldClaim.from_json(root.compare_set("world", "", claim.to_json()))
    if current is not None and (current.host, current.pid) != (claim.host, claim.pid):
        raise _first_rank_twice(current)
    if current != claim:  # our own claim, of a world that did not come together
        root.set("world", claim.to_json())
    return claim


def join_world(root: Store, assignment: RankAssignment, deadline: float, clock: TimeSource = SYSTEM_TIME) -> WorldClaim:
    """The other ranks wait for rank 0's claim."""
    # Every waiting rank leaves a key: if rank 0 never comes, the others can still tell which more are missing.
    key = f"waiting/{assignment.rank}"
    root.set(key, get_hostname())

    def read() -> WorldClaim | None:
        claim = _read_claim(root)
        return None if claim is None or claim.rollcall in _left else claim

    begun = clock.now()
    claim = poll(read, deadline, clock)
    if claim is None:
        missing = [str(rank) for rank in range(1, assignment.world_size) if not root.check([f"waiting/{rank}"])]
        others = f", nor did ranks {', '.join(missing)}" if missing else "; all others are waiting"
        raise WorldError(
            f"rank 0 did not come within {clock.now() - begun:.0f} s{others}: "
            "see whether rank 0 has failed before rollcall.init"
        )
    root.delete_key(key)
    return claim


def _read_claim(root: Store) -> WorldClaim | None:
    return WorldClaim.from_json(root.get("world")) if root.check(["world"]) else None


# ---- in a file


def _attempt_path(path: Path, attempt: int) -> Path:
    return path.with_name(f"{path.name}.attempt-{attempt}") if attempt else path


def _data_path(path: Path, claim: WorldClaim) -> Path:
    return path.with_name(f"{path.name}.{claim.rollcall}")


def _claim_file(path: Path, world_size: int, deadline: float) -> tuple[int, WorldClaim]:
    claim = WorldClaim.new(world_size)

    def create() -> int | None:
        try:
            return os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
        except FileExistsError:
            current = _read_file(path)
            if current is not None and current.rollcall in _left:
                return None  # our last world: the others are still leaving it
            raise _left_over(path, current) from None
        except OSError as error:
            raise UsageError(
                f"file:// store {path} cannot be made ({os.strerror(error.errno or 0)}): use another path"
            ) from error

    lock = poll(create, deadline)
    if lock is None:
        raise WorldError(f"{path} is still in use by this process's last world: a rank has not left it")
    try:
        # The kernel drops the lock however this process ends, SIGKILL included: a file without a lock is left
        # over. A fork does not inherit it, so no DataLoader worker can keep it.
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Written after the lock is taken: the others wait while the file is empty.
        os.write(lock, claim.to_json().encode())
    except OSError as error:
        os.close(lock)
        path.unlink(missing_ok=True)
        raise UsageError(
            f"file:// store {path} is on a file system without locks ({error.strerror}): use another path"
        ) from error
    return lock, claim


def _join_file(path: Path, assignment: RankAssignment, deadline: float) -> WorldClaim:
    def read() -> WorldClaim | None:
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
            f"rank 0 did not come to {path} within {time.monotonic() - begun:.0f} s, as rank {assignment.rank} on "
            f"{get_hostname()} sees it: start rank 0, or use a path that all hosts share"
        )
    return claim


def _read_file(path: Path) -> WorldClaim | None:
    """The claim in a file; None where there is no file, or rank 0 has not written it yet."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"file:// store {path} cannot be read ({error.strerror}): use another") from error
    try:
        return WorldClaim.from_json(data)
    except (ValueError, TypeError):
        raise UsageError(f"{path} exists already and is no store of rollcall's: use another path") from None


def _is_locked(path: Path) -> bool:
    """Whether a living rank 0 holds the file. Tried with a shared lock, so that two ranks can try at once."""
    try:
        with open(path, "rb") as file:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError as error:
        return error.errno in (errno.EACCES, errno.EAGAIN)
    return False


def _left_over(path: Path, claim: WorldClaim | None) -> UsageError | WorldError:
    if claim is not None and _is_locked(path):
        return _first_rank_twice(claim)
    of = f", of process {claim.pid} on {claim.host}" if claim else ""
    data = f" {_data_path(path, claim)}" if claim else ""
    return UsageError(
        f"file:// store {path} is left over from an earlier run{of}: remove it (rm -f {path}{data}), or use a new path"
    )


def _clear_attempts(path: Path, attempt: int) -> None:
    """The first attempt refuses files of other attempts; a restart removes those of the attempts before it."""
    stale = sorted(path.parent.glob(f"{path.name}.attempt-[0-9]*"))
    if attempt == 0:
        claims = [file for file in stale if file.suffix.removeprefix(".attempt-").isdigit()]
        if claims:
            raise _left_over(claims[0], _read_file(claims[0]))
        return
    for file in (_attempt_path(path, number) for number in range(attempt)):
        claim = _read_file(file)
        if claim is not None and not _is_locked(file):
            file.unlink(missing_ok=True)
            _data_path(file, claim).unlink(missing_ok=True)
