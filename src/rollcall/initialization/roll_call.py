"""The roll call: every rank registers in the store before a group is made.

Torch's groups do not say which ranks are missing. Here rank 0 reads all registrations and publishes one decision
for every rank: the settings of the group, or an error. A rank whose time is over may publish an error too. Only
the first decision counts, so either all ranks make the group or none does.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NoReturn

from rollcall.errors import RollcallError, UsageError, WorldError
from rollcall.initialization.environment import RankAssignment
from rollcall.initialization.placement import Placement, locate, place_by_host
from rollcall.initialization.stores import WorldStore
from rollcall.initialization.waiting import SYSTEM_TIME, TimeSource, poll
from rollcall.protocol.rank_ranges import ranks_in_words
from rollcall.world import get_hostname, get_process_id

LEAVE_S = 5.0
_OTHERS_S = 2.0  # for other ranks to finish a write, or to read an error


@dataclass(frozen=True)
class Registration:
    """What one rank says about itself."""

    rank: int
    host: str
    machine: str  # two machines may have the same host name
    pid: int
    local_rank: int | None = None
    local_world_size: int | None = None
    node_rank: int | None = None
    nnodes: int | None = None
    backend: str | None = None  # None: the best that all ranks can use
    gpus: tuple[str, ...] = ()  # the host's names of the GPUs that this rank sees

    @property
    def ranks_of_host(self) -> range | None:
        """The ranks of this rank's host, where its launcher said enough to compute them."""
        if self.local_rank is None or self.local_world_size is None:
            return None
        first = self.rank - self.local_rank
        return range(first, first + self.local_world_size)


@dataclass(frozen=True)
class Decision:
    """What holds for every rank: the settings of the group, or the error that all ranks raise."""

    error: str = ""
    is_usage_error: bool = False
    backend: str = ""
    placements: tuple[Placement, ...] = ()  # by rank
    gpus: tuple[int | None, ...] = ()  # by rank

    @classmethod
    def refuse(cls, error: RollcallError) -> "Decision":
        return cls(error=str(error), is_usage_error=isinstance(error, UsageError))

    @classmethod
    def from_json(cls, text: bytes) -> "Decision":
        fields = json.loads(text)
        placements = tuple(Placement(**placement) for placement in fields["placements"])
        return cls(**{**fields, "placements": placements, "gpus": tuple(fields["gpus"])})

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def make_registration(assignment: RankAssignment, backend: str | None, gpus: tuple[str, ...]) -> Registration:
    return Registration(
        rank=assignment.rank,
        host=get_hostname(),
        machine=_read_boot_id(),
        pid=get_process_id(),
        local_rank=assignment.local_rank,
        local_world_size=assignment.local_world_size,
        node_rank=assignment.node_rank,
        nnodes=assignment.nnodes,
        backend=backend,
        gpus=gpus,
    )


class RollCall:
    """One rank's part in the roll call of a world."""

    def __init__(
        self,
        world: WorldStore,
        assignment: RankAssignment,
        timeout_s: float,
        deadline: float,
        clock: TimeSource = SYSTEM_TIME,
    ) -> None:
        self._world, self._store, self._assignment = world, world.store, assignment
        self._timeout_s, self._deadline, self._clock = timeout_s, deadline, clock

    def register(self, mine: Registration) -> None:
        """Raises, on this rank and on all others, if this rank cannot be one of the world."""
        self._check_world_size(mine)
        if self._store.add(f"registrations/{mine.rank}", 1) == 1:
            self._store.set(_key(mine.rank), json.dumps(asdict(mine)))
        else:
            self._refuse_twice(mine)

    def wait_for_decision(self) -> Decision:
        """Raises the error that all ranks raise."""
        is_first = self._assignment.rank == 0
        if is_first:
            self._decide()
        decision = poll(self._read_decision, self._deadline, self._clock)
        if decision is None:
            decision = self._publish(self._refuse_missing())
        self._store.add("read", 1)
        if decision.error:
            if is_first:
                self._wait_until_read()
            self._world.leave(is_first)
            raise (UsageError if decision.is_usage_error else WorldError)(decision.error)
        return decision

    def _check_world_size(self, mine: Registration) -> None:
        size, claim = self._assignment.world_size, self._world.claim
        if size != claim.world_size:
            self._fail(
                UsageError(
                    f"rank {mine.rank} (process {mine.pid} on {mine.host}) was started with world_size {size}, "
                    f"rank 0 (process {claim.pid} on {claim.host}) with {claim.world_size}: use the same for all ranks"
                )
            )

    def _refuse_twice(self, mine: Registration) -> NoReturn:
        # The first process may be between its two writes.
        limit = self._clock.now() + _OTHERS_S
        first = poll(lambda: self._read_registration(mine.rank), limit, self._clock)
        other = f"process {first.pid} on {first.host}" if first else "another process"
        self._fail(
            WorldError(
                f"rank {mine.rank} was started twice: {other}, and process {mine.pid} on {mine.host}: "
                "give every process a rank of its own"
            )
        )

    def _fail(self, error: RollcallError) -> NoReturn:
        self._publish(Decision.refuse(error))
        raise error

    def _decide(self) -> None:
        """On rank 0: publish the decision once all ranks have registered, or the time is over."""
        keys = [_key(rank) for rank in range(self._assignment.world_size)]
        store = self._store
        poll(lambda: store.check(keys) or store.check(["decision"]) or None, self._deadline, self._clock)
        if store.check(["decision"]):
            return
        self._publish(decide_group(self._registered()) if store.check(keys) else self._refuse_missing())

    def _wait_until_read(self) -> None:
        """Let the registered ranks read the error before the store ends with this process."""
        registered = len(self._registered())
        limit = self._clock.now() + _OTHERS_S
        poll(lambda: self._store.add("read", 0) >= registered or None, limit, self._clock)

    def _refuse_missing(self) -> Decision:
        return Decision.refuse(missing_ranks(self._registered(), self._assignment, self._timeout_s))

    def _publish(self, decision: Decision) -> Decision:
        """Publish a decision, unless another rank was faster; return the one that counts."""
        return Decision.from_json(self._store.compare_set("decision", "", decision.to_json()))

    def _read_decision(self) -> Decision | None:
        return Decision.from_json(self._store.get("decision")) if self._store.check(["decision"]) else None

    def _read_registration(self, rank: int) -> Registration | None:
        if not self._store.check([_key(rank)]):
            return None
        fields = json.loads(self._store.get(_key(rank)))
        return Registration(**{**fields, "gpus": tuple(fields["gpus"])})

    def _registered(self) -> list[Registration]:
        found = map(self._read_registration, range(self._assignment.world_size))
        return [registration for registration in found if registration is not None]


def leave_store(world: WorldStore, rank: int, world_size: int, wait: bool, clock: TimeSource = SYSTEM_TIME) -> None:
    """Leave the store. Rank 0 waits a while for the others: the store may live in its process.

    A rank does not touch the store after its own `left`: the last one removes the file, and torch's FileStore
    would create it again and read it without end.
    """
    if rank == 0 and wait:
        poll(lambda: world.store.add("left", 0) >= world_size - 1 or None, clock.now() + LEAVE_S, clock)
    world.leave(world.store.add("left", 1) >= world_size)


def decide_group(ranks: Sequence[Registration]) -> Decision:
    """The backend, and each rank's placement and GPU; or what makes a group impossible."""
    placements = decide_placements(ranks)
    gpus = [pick_gpu(rank.gpus, placement.local_rank) for rank, placement in zip(ranks, placements, strict=True)]
    try:
        backend = choose_backend(ranks, gpus)
    except UsageError as error:
        return Decision.refuse(error)
    used = gpus if "nccl" in backend else [None] * len(gpus)
    return Decision(backend=backend, placements=tuple(placements), gpus=tuple(used))


def decide_placements(ranks: Sequence[Registration]) -> list[Placement]:
    """What the launcher said, and where it said nothing, what follows from the hosts of all ranks."""
    by_host = place_by_host([(rank.host, rank.machine) for rank in ranks])
    return [
        replace(found, **{name: value for name in vars(found) if (value := getattr(rank, name)) is not None})
        for rank, found in zip(ranks, by_host, strict=True)
    ]


def pick_gpu(gpus: Sequence[str], local_rank: int) -> int | None:
    """The index of the GPU for a local rank; a rank that sees a single GPU uses that one."""
    if len(gpus) == 1:
        return 0
    return local_rank if local_rank < len(gpus) else None


def choose_backend(ranks: Sequence[Registration], gpus: Sequence[int | None]) -> str:
    """The one asked for, else nccl where every rank has a GPU of its own, else gloo."""
    asked = {rank.backend: rank for rank in reversed(ranks) if rank.backend is not None}
    if len(asked) > 1:
        each = ", ".join(f"rank {rank.rank} {name}" for name, rank in asked.items())
        raise UsageError(f"the ranks ask for different backends ({each}): pass the same to all")
    conflict = find_gpu_conflict(ranks, gpus)
    backend = next(iter(asked), None) or ("gloo" if conflict else "nccl")
    if conflict and "nccl" in backend:
        raise UsageError(f"{conflict}, but nccl needs one for each rank: start fewer ranks, or use gloo")
    return backend


def find_gpu_conflict(ranks: Sequence[Registration], gpus: Sequence[int | None]) -> str:
    owners: dict[tuple[str, str, str], Registration] = {}
    for rank, gpu in zip(ranks, gpus, strict=True):
        if gpu is None:
            return f"rank {rank.rank} on {rank.host} has no GPU of its own ({len(rank.gpus)} on that host)"
        name = (rank.host, rank.machine, rank.gpus[gpu])
        if name in owners:
            return f"ranks {owners[name].rank} and {rank.rank} on {rank.host} share GPU {rank.gpus[gpu]}"
        owners[name] = rank
    return ""


def missing_ranks(came: Sequence[Registration], assignment: RankAssignment, timeout_s: float) -> WorldError:
    """Which ranks did not register in time, and from which hosts they were expected."""
    present = {rank.rank for rank in came}
    hosts: dict[str, list[int]] = {}
    for rank in range(assignment.world_size):
        if rank not in present:
            hosts.setdefault(expected_host(rank, came, assignment), []).append(rank)
    missing = "; ".join(f"{ranks_in_words(ranks)}, expected from {host}" for host, ranks in hosts.items())
    return WorldError(
        f"after {timeout_s:g} s {len(present)} of {assignment.world_size} ranks had come, missing: {missing}: "
        "see whether they have failed or were never started, or use a longer timeout_s"
    )


def expected_host(rank: int, came: Sequence[Registration], assignment: RankAssignment) -> str:
    """Where a missing rank should have come from, as far as the launcher and the registered ranks can tell."""
    listed = assignment.listed_host(rank) if _fill_hosts_in_order(came, assignment) else None
    if listed:
        return listed
    if assignment.nnodes == 1 or assignment.master_addr in ("localhost", "127.0.0.1", "::1"):
        return f"this host ({get_hostname()})"
    spans: dict[str, set[range | None]] = {}
    for each in came:
        spans.setdefault(each.host, set()).add(each.ranks_of_host)
    for host, (span, *others) in spans.items():
        # A host whose own ranks contradict each other does not have its ranks in a row.
        if not others and span is not None and rank in span:
            return host
    empty = sorted(set(range(assignment.nnodes or 0)) - {each.node_rank for each in came})
    if empty:
        nodes = ", ".join(map(str, empty))
        return f"node{'s' * (len(empty) > 1)} {nodes}, from which no rank came"
    return "an unknown host (the ranks were started by hand)"


def _fill_hosts_in_order(came: Sequence[Registration], assignment: RankAssignment) -> bool:
    """Whether the registered ranks are where they would be if hosts were filled one after the other."""
    counts = assignment.ranks_per_host
    return bool(counts) and all(locate(each.rank, counts) == (each.node_rank, each.local_rank) for each in came)


def _key(rank: int) -> str:
    return f"registration/{rank}"


def _read_boot_id() -> str:
    """Tells two machines of one name apart, and is the same for all processes of one machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
