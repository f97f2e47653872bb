"""Reads the files of a run: the table of its ops, and how each rank ended."""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollcall.errors import UsageError
from rollcall.explain.dumps import files as dump_files
from rollcall.explain.dumps import read as dump_reader
from rollcall.explain.loading import gpus as gpu_files
from rollcall.explain.loading import rings, stored_lines
from rollcall.explain.loading.cut import ClockReading, as_of
from rollcall.explain.loading.table import UNKNOWN_GROUP, Group, Op, Ops, Readings, Site, Table, parse_group, parse_site
from rollcall.protocol.plan import Plan
from rollcall.protocol.rank_ranges import ranks_in_words
from rollcall.record import ring_format
from rollcall.record.sites import is_users_file
from rollcall.runs import DUMPS, SOURCES, facts_of_attempt, is_over, read_facts, recorded_attempts, ring_folders

_DRIFT = 100e-6  # seconds per second; clocks of hosts stay below it


@dataclass(frozen=True)
class Rank:
    """What is known of one rank: its ops in order, and how it ended."""

    number: int
    ops: Ops
    events: Ops  # what is recorded besides ops: samples, phases, signals
    host: str = ""
    pid: int = 0
    dropped: int = 0  # older records that are not here: the ring has overwritten them, or they were not read
    unread: int = 0  # those of them that the ring still has
    has_all_counters: bool = True  # False: of some overwritten ops the ring has no count
    unnamed: int = 0  # ops whose line, shape or group the ring had no room for
    exit_code: int | None = None  # None: it did not end by itself
    cause: str = ""  # what is known of its end beyond the exit code
    error: str = ""  # the exception that its program ended with
    error_site: Site | None = None
    handled: "Handled | None" = None  # what it handles while it is in an op
    exit_site: Site | None = None  # where it called sys.exit
    ended_ns: int = 0
    died_ns: int = 0  # by the launcher's wall clock; 0: it did not die, or was asked to end
    gone_ns: int = 0  # the same by the clock of its ops
    stack: tuple[Site, ...] = ()  # of its main thread, innermost first, when it was last dumped
    is_idle: bool | None = None  # whether it used no processor while the run stood still; None: that is not known
    no_stack: str = ""  # why it could not be dumped
    stopped: str = ""  # why its recording stopped before its program did

    @property
    def has_ended(self) -> bool:
        return self.exit_code is not None or self.ended_ns > 0

    @property
    def own_stack(self) -> tuple[Site, ...]:
        """The lines of its stack that are the user's."""
        return tuple(site for site in self.stack if is_users_file(site.file))

    @property
    def last(self) -> Op | None:
        return self.ops[-1] if self.ops else None


@dataclass(frozen=True)
class Handled:
    """An error that a rank handles in a `finally`, an `except` or the exit of a context, while it waits in an op."""

    error: str
    site: Site | None
    row: int  # of that op


@dataclass(frozen=True)
class Run:
    """One attempt of a run."""

    name: str
    attempt: int
    outcome: str
    ranks: dict[int, Rank]
    world_size: int
    table: Table
    folded: tuple["Folded", ...] = ()
    lost: tuple["Lost", ...] = ()
    is_one_clock: bool = True  # False: the clocks of its hosts were not compared, so waits are not computed
    clock_error_ns: int = 0  # how far the clocks of two hosts may still be apart
    cut_ns: int = 0  # of a running job: the moment at which it was looked at; 0: it is over, or known to hang
    stopped_ns: int = 0  # of a run that was stopped from outside, and not since it hung: when
    is_asleep: bool = False  # it hangs, and no rank is in an op: all wait for locks
    hang_after_s: float = Plan.hang_after_s
    problems: tuple[str, ...] = field(default=())  # what could not be read
    until_ns: int = 0  # until when it was looked at, if that is later than all that is recorded
    is_from_dumps: bool = False  # of torch's Flight Recorder, which knows what is over on the device
    has_device_times: bool = False  # its ops begin when the devices came to them, and not when hosts asked for them
    held_by_lost: frozenset[int] = frozenset()  # by dumps: ranks that may wait for an op that was overwritten
    not_begun: frozenset[int] = frozenset()  # by dumps: ranks whose device has not begun the op that holds them up
    device: "Run | None" = None  # of a run with rings: what dumps beside them tell
    gpus: dict[int, gpu_files.RankGpu] = field(default_factory=dict)  # by rank, where a driver told of them
    nccl_ras: tuple[str, ...] = ()  # what NCCL's own service found wrong while the run stood still
    is_rehearsed: bool = False  # by `rollcall rehearse`: its times are those of a replay, and mean nothing


@dataclass(frozen=True)
class Lost:
    """A host that was lost during the attempt: it ended, or the network to it was cut."""

    host: str
    why: str
    is_cut: bool
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Folded:
    """Sums of a rank's ops that its ring has overwritten."""

    rank: int
    group: Group
    op: str
    count: int
    size_bytes: int
    blocked_ns: int


def load(folder: Path, attempt: int | None = None, newest: int | None = None, is_hung: bool = False) -> Run:
    """One attempt of a run, the newest by default; all records, or about `newest` of them. A folder without rings may
    have dumps of torch's Flight Recorder. `is_hung`: the run continues, and all ranks are known to have stood still for
    long."""
    if _is_of_dumps(folder):
        return _load_dumps(folder)
    facts = read_facts(folder)
    moment = ClockReading.now(facts.get("host") == os.uname().nodename)
    number = _attempt(folder, attempt)
    attempt_facts = facts_of_attempt(facts, number)
    known = clocks(facts)
    goes_on = not is_hung and not is_over(facts) and number == recorded_attempts(folder)[-1]
    place = ring_folders(folder)[number]
    stored_lines.use(place / SOURCES)
    paths = sorted(place.glob("*.ring"), key=_number)
    launched = int(attempt_facts.get("world_size") or 0)
    files = _read(paths, known, newest, launched, moment if goes_on else None)
    if not files.kept and files.problems:
        writer = (facts.get("versions") or {}).get("rollcall")
        hint = f"; rollcall {writer} wrote it" if writer else ""
        raise UsageError(f"no ring of {folder.name} can be read: {files.problems[0]}{hint}")
    grace_s = float((facts.get("plan") or {}).get("grace_s") or Plan.grace_s)
    asked = _asked(attempt_facts, grace_s, files)
    ranks = {rank: _rank(files, rank, attempt_facts, *asked.get(rank, (0, 0))) for rank in sorted(files.table.spans)}
    # Children of a rank may have formed a larger world than the launcher knows of.
    world_size = max(launched, files.world_size, len(ranks))
    hosts = sorted({rank.host for rank in ranks.values()})
    is_one_clock = len(hosts) < 2 or all(rank < len(known) and known[rank] for rank in ranks)
    rehearsed = facts.get("rehearsed")
    outcome = attempt_facts.get("outcome") or facts.get("outcome") or _outcome(ranks, world_size)
    device, problem = _device(folder, number)
    return Run(
        name=folder.name,
        attempt=number,
        outcome=outcome,
        ranks=ranks,
        world_size=world_size,
        table=files.table,
        folded=tuple(files.folded),
        lost=_lost(facts, attempt_facts),
        is_one_clock=is_one_clock and not rehearsed,
        clock_error_ns=max((min(error for _, _, error in readings) for readings in known if readings), default=0),
        cut_ns=files.cut_ns if outcome == "running" else 0,
        stopped_ns=0 if attempt_facts.get("hung") else _stopped_ns(outcome, attempt_facts, files),
        is_asleep=bool(attempt_facts.get("hung") and attempt_facts.get("asleep")),
        hang_after_s=float((facts.get("plan") or {}).get("hang_after_s") or Plan.hang_after_s),
        problems=(
            *files.problems,
            *_problems(ranks, world_size, [] if is_one_clock else hosts),
            *problem,
            *_misread(facts.get("misread", [])),
        ),
        device=device,
        gpus=_gpus(place, files, ranks),
        nccl_ras=gpu_files.nccl_problems(place),
        is_rehearsed=bool(rehearsed),
    )


def _gpus(place: Path, files: "_Files", ranks: dict[int, Rank]) -> dict[int, gpu_files.RankGpu]:
    on_gpu = set(np.unique(files.table.rank[files.table.is_on_gpu]).tolist())
    users = [
        gpu_files.User(rank.number, rank.host, rank.pid, files.ahead_ns[rank.number], rank.number in on_gpu)
        for rank in ranks.values()
    ]
    return gpu_files.read(place, users)


def _misread(names: list[str]) -> list[str]:
    if not names:
        return []
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return [f"run.json is damaged, or another version wrote it: {', '.join(names[:3])}{more} could not be understood"]


def _is_of_dumps(folder: Path) -> bool:
    """A run's own folder is none, even if it has no rings."""
    if folder.is_file():
        return True
    is_run = (folder / "run.json").exists() or bool(ring_folders(folder))
    return not is_run and bool(dump_files.find(folder))


def _device(folder: Path, attempt: int) -> tuple[Run | None, list[str]]:
    """What nccl's own recorder wrote during the attempt, if it did; or why that cannot be read."""
    place = folder / DUMPS / f"attempt-{attempt}"
    if not place.is_dir() or not dump_files.find(place):
        return None, []
    try:
        return _load_dumps(place), []
    except UsageError as error:
        return None, [str(error)]


def _load_dumps(folder: Path) -> Run:
    dumps = dump_reader.read(folder)
    files = _Files(Table(sum(len(ring.records) for _, ring in dumps.rings)))
    for path, ring in dumps.rings:
        files.add(path, ring, [])
    files.close()
    ranks = {rank: _rank(files, rank, {}) for rank in sorted(files.table.spans)}
    return Run(
        name=folder.name,
        attempt=0,
        outcome=dumps.outcome,
        ranks=ranks,
        world_size=dumps.world_size,
        table=files.table,
        folded=tuple(files.folded),
        problems=(*dumps.problems, *_problems(ranks, dumps.world_size, [], "dump", not dumps.has_only_open)),
        until_ns=dumps.until_ns,
        is_from_dumps=True,
        has_device_times=dumps.has_device_times,
        held_by_lost=dumps.held_by_lost,
        not_begun=dumps.not_begun,
    )


def _stopped_ns(outcome: str, attempt_facts: dict[str, Any], files: "_Files") -> int:
    """When the first rank was gone that the launcher had asked to end, by the clock of the table; 0: none was."""
    ended_ns = attempt_facts.get("ended_ns", {})
    asked = [int(rank) for rank in attempt_facts.get("asked", {}) if rank in ended_ns and int(rank) in files.kept]
    if outcome != "stopped" or not asked:
        return 0
    return min(int(ended_ns[str(rank)]) - files.ahead_ns[rank] for rank in asked)


def _attempt(folder: Path, wanted: int | None) -> int:
    """The newest, or the wanted one if it was recorded."""
    found = recorded_attempts(folder)
    if not found:
        if not (folder / "run.json").exists():
            what = "neither the folder of a run, nor one of rings or of Flight Recorder dumps"
            raise UsageError(f"{folder} is {what}: there is nothing to explain")
        raise UsageError(f"{folder.name} {_why_no_rings(read_facts(folder))}")
    if wanted is not None and wanted not in found:
        raise UsageError(f"{folder.name} has no attempt {wanted}: it has {', '.join(map(str, found))}")
    return found[-1] if wanted is None else wanted


def _why_no_rings(facts: dict[str, Any]) -> str:
    if is_over(facts) or not (facts.get("plan") or {}).get("record", True):
        return "has no rings, so there is nothing to explain: it ran with --no-record, or ended before its ranks began"
    return "has no rings yet, so there is nothing to explain: its ranks are just starting; ask again in some seconds"


def _problems(
    ranks: dict[int, Rank],
    world_size: int,
    uncompared_hosts: list[str],
    file: str = "ring",
    are_losses_told: bool = True,
) -> Iterator[str]:
    if missing := sorted(set(range(world_size)) - set(ranks)):
        yield f"no {file} of {ranks_in_words(missing)}: this explanation is without them"
    if are_losses_told:
        yield from _losses(ranks, "--ring-mb" if file == "ring" else "TORCH_FR_BUFFER_SIZE")
    stopped: defaultdict[str, list[int]] = defaultdict(list)
    for rank in ranks.values():
        if rank.stopped:
            stopped[rank.stopped].append(rank.number)
    for why, numbers in stopped.items():
        did = "it" if len(numbers) == 1 else "they"
        yield f"the recording of {ranks_in_words(numbers)} stopped {why}; what {did} did then is not known"
    if uncompared_hosts:
        few = [
            *uncompared_hosts[:_FEW],
            *([f"{more} more hosts"] if (more := len(uncompared_hosts) - _FEW) > 0 else []),
        ]
        yield f"the clocks of {', '.join(few)} were not compared: who waited for whom is unknown"


_FEW = 4  # hosts that fit into a line


def _losses(ranks: dict[int, Rank], option: str) -> Iterator[str]:
    """One sentence for all ranks that kept as much. `option`: what makes more room."""
    alike: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for number, rank in ranks.items():
        if rank.dropped > rank.unread:
            kept = len(rank.ops) + len(rank.events)
            alike[kept, kept + rank.dropped].append(number)
    for (kept, whole), numbers in list(alike.items())[:_FEW]:
        its = "its" if len(numbers) == 1 else "their"
        yield f"{ranks_in_words(numbers)} kept {its} last {kept:,} ops of {whole:,}: {option} keeps more"
    if len(alike) > _FEW:
        more = sum(len(numbers) for numbers in list(alike.values())[_FEW:])
        yield f"so did {more} more ranks, which kept other numbers of ops"
    if unnamed := [number for number, rank in ranks.items() if rank.unnamed]:
        yield (
            f"{ranks_in_words(unnamed)} had no room for all lines and shapes: ops without them are not compared;"
            f" {option} makes room"
        )


_FEW = 4  # sentences of this sort; more would hide the other problems


def _outcome(ranks: dict[int, Rank], world_size: int) -> str:
    """Derives the outcome of a run without a launcher from its ranks."""
    if any(rank.error or rank.exit_code for rank in ranks.values()):
        return "failed"
    has_ended = len(ranks) == world_size and all(rank.has_ended for rank in ranks.values())
    return "ok" if has_ended else "running"


def _lost(facts: dict[str, Any], attempt_facts: dict[str, Any]) -> tuple[Lost, ...]:
    gone = [
        Lost(host, str(each.get("why", "")), bool(each.get("is_cut")), tuple(each.get("ranks", ())))
        for host, each in attempt_facts.get("lost", {}).items()
    ]
    return (*gone, *_cut_off(facts, attempt_facts.get("unreachable", {})))


def _cut_off(facts: dict[str, Any], unreachable: dict[str, list[str]]) -> list[Lost]:
    """Hosts that most others could not reach while the run hung; all of them if none stands out."""
    counts = Counter(host for mine, others in unreachable.items() for host in {mine, *others})
    most = max(counts.values(), default=0)
    first, found = 0, []
    for host, each in facts.get("hosts", {}).items():
        slots = int(each.get("slots", 0))
        if counts[host] == most > 0:
            by = sorted(other for other, silent in unreachable.items() if host in silent)
            why = f"could not be reached from {', '.join(by) or 'any other'} while the run hung"
            found.append(Lost(host, why, True, tuple(range(first, first + slots))))
        first += slots
    return found


def clocks(facts: dict[str, Any]) -> list[Readings]:
    """Per rank, if there are several hosts: by how much its host's clock was ahead of the launcher's, and when."""
    found: list[Readings] = []
    hosts = facts.get("hosts", {})
    for host in hosts.values() if len(hosts) > 1 else ():
        readings = [(int(at), int(offset), int(error)) for at, offset, error in host.get("clock_readings", [])]
        found += [_precise(readings)] * int(host.get("slots", 0))
    return found


def _precise(readings: Readings) -> Readings:
    """Drops readings that are worse than a neighbour plus the drift until then: a ping that a busy host answered late
    would distort the times between precise readings."""
    return [
        (at, offset, error)
        for at, offset, error in readings
        if all(error <= other + abs(at - then) * _DRIFT for then, _, other in readings)
    ]


def _number(path: Path) -> int:
    number = path.stem.removeprefix("rank-")
    return int(number) if number.isdecimal() else 0


@dataclass
class _Files:
    """The contents of the ring files of an attempt."""

    table: Table
    kept: dict[int, tuple[Path, rings.Header]] = field(default_factory=dict)  # by rank
    folded: list[Folded] = field(default_factory=list)
    handled: dict[int, tuple[dict[str, Any], Site | None]] = field(default_factory=dict)  # by rank: the newest
    ahead_ns: dict[int, int] = field(default_factory=dict)  # by rank: its host's wall clock less the table's clock
    problems: list[str] = field(default_factory=list)
    world_size: int = 0
    cut_ns: int = 0  # by the clock of the table
    _waiting: list[rings.ReadRing] = field(default_factory=list)  # of one host and with the same names: added together
    _clock: Readings = field(default_factory=list)  # of these

    def cut(self, ring: rings.ReadRing, clock: Readings, moment: ClockReading) -> rings.ReadRing:
        """The ring as it was at a moment."""
        at_ns = moment.by_clock_of(ring.header, clock)
        cut_ns = at_ns - (clock[-1][1] if clock else 0)
        self.cut_ns = min(self.cut_ns or cut_ns, cut_ns)
        records = as_of(ring.records, at_ns)
        count = ring.header.count - (len(ring.records) - len(records))
        return replace(ring, header=replace(ring.header, count=count), records=records)

    def add(self, path: Path, ring: rings.ReadRing, clock: Readings) -> None:
        rank = ring.header.rank
        self.kept[rank] = path, ring.header
        offset_ns = clock[-1][1] if clock else 0
        self.ahead_ns[rank] = ring.header.wall_ns - ring.header.monotonic_ns + offset_ns
        self.folded += _folded(ring)
        if (handled := _handled(ring)) is not None:
            self.handled[rank] = handled
        self.world_size = max(self.world_size, min(ring.header.world_size, _MOST_RANKS))
        waiting = self._waiting
        is_like_them = not waiting or (waiting[0].names is ring.names and self._clock is clock)
        if not is_like_them or sum(len(each.records) for each in waiting) > _TOGETHER:
            self.flush()
        self._waiting.append(ring)
        self._clock = clock

    def flush(self) -> None:
        if self._waiting:
            self.table.add_alike(self._waiting, self._clock)
            self._waiting = []

    def close(self) -> None:
        self.flush()
        self.table.close()

    def events_of(self, rank: int) -> NDArray[np.intp]:
        """The rows of a rank that are no communication."""
        return self._events[slice(*np.searchsorted(self._events, self.table.spans[rank]))]

    @cached_property
    def _events(self) -> NDArray[np.intp]:
        return np.flatnonzero(self.table.is_event)


def _read(
    paths: list[Path], clocks: list[Readings], newest: int | None, launched: int, moment: ClockReading | None
) -> _Files:
    """`launched`: the world size that the launcher has noted; 0 if it has not. `moment`: the run continues, and is seen
    as it was then."""
    found = list(map(rings.count, paths))
    counts, world_size = [count for count, _ in found], _world_size([size for _, size in found], launched)
    none: Readings = []
    each = None if newest is None else max(newest // max(len(paths), 1), _LEAST_OF_EACH)
    files = _Files(Table(sum(counts if each is None else (min(count, each) for count in counts))))
    for path in paths:
        try:
            ring = rings.read(path, each)
        except ValueError as error:
            files.problems.append(f"{path.name}: {error}")
            continue
        rank = ring.header.rank
        if ring.header.world_size != world_size:
            of = f"it is of a run of {ring.header.world_size} ranks, and not of this one, which has {world_size}"
            files.problems.append(f"{path.name}: {of}; record each run into a folder of its own")
            continue
        if rank in files.kept:
            files.problems.append(f"{path.name}: it says it is of rank {rank}, but there is another ring of that rank")
            continue
        clock = clocks[rank] if rank < len(clocks) else none
        if moment is not None:
            ring = files.cut(ring, clock, moment)
        files.add(path, ring, clock)
    files.close()
    return files


_TOGETHER = 1 << 13  # records: enough for numpy, and they stay in the processor's cache
_MOST_RANKS = 1 << 20  # a header with a larger world is damaged
_LEAST_OF_EACH = 100  # records: with fewer, a view of many ranks has no whole step of any


def _world_size(sizes: list[int], launched: int) -> int:
    """The launcher's, if a ring has it; else that of most rings. Two runs may have been recorded into one folder."""
    known = [size for size in sizes if size]  # of those that can be read
    if launched in known:
        return launched
    return Counter(known).most_common(1)[0][0] if known else 0


@lru_cache(maxsize=1024)
def _group(value: bytes) -> Group:
    """All ranks of a group name it alike, with all its members: it is parsed once."""
    return parse_group(rings.parse(value))


def _folded(ring: rings.ReadRing) -> list[Folded]:
    wanted = {group for group, *_ in ring.counters}
    groups = {n: _group(value) for kind, n, value in ring.names if kind == "group" and n in wanted}
    return [
        Folded(ring.header.rank, groups.get(group, UNKNOWN_GROUP), ring_format.OPS[op], *rest)
        for group, op, *rest in ring.counters
    ]


def _handled(ring: rings.ReadRing) -> tuple[dict[str, Any], Site | None] | None:
    """The error that a rank was last seen to handle in an op, and where it was raised."""
    found = [rings.parse(value) for kind, _, value in ring.names if kind == "handled"]
    if not found or not isinstance(found[-1], dict) or not isinstance(found[-1].get("op"), int):
        return None
    places = [value for kind, number, value in ring.names if kind == "site" and number == found[-1].get("site")]
    return found[-1], parse_site(rings.parse(places[0])) if places else None


def _handled_now(files: _Files, rank: int) -> Handled | None:
    """If the rank is still in the op in which it was seen to handle it."""
    value, site = files.handled.get(rank, ({}, None))
    start, end = files.table.spans[rank]
    row = end - 1 - (files.kept[rank][1].count - value["op"]) if value else -1
    if not start <= row < end or not files.table.get(row).is_blocked:
        return None
    return Handled(f"{value.get('error', 'an error')}: {value.get('text', '')}".rstrip(": "), site, row)


def _rank(files: _Files, rank: int, attempt_facts: dict[str, Any], asked_ns: int = 0, failed_ns: int = 0) -> Rank:
    table = files.table
    path, header = files.kept[rank]
    start, end = table.spans[rank]
    dropped = max(header.count - (end - start), 0)
    event_rows = files.events_of(rank)
    ops, events = _ops_without(table, start, end, event_rows), _ops(table, event_rows)
    key = str(rank)
    was_asked = asked_ns > 0
    error, error_site, exit_site, ended_ns, left_ns, exit_code = "", None, None, 0, 0, None
    for op in _ops(table, event_rows[_IS_END[table.op[event_rows]]]):
        since_ns = max(asked_ns, failed_ns) if op.op == "destroy" else asked_ns
        if asked_ns and op.entered_ns >= since_ns:  # the others were gone, say: its end is the launcher's doing
            continue
        if op.op == "exception":
            ended_ns, exit_code, was_asked = op.entered_ns, 1, False
            error, error_site = _error(op), op.site
        elif op.op == "exit":
            ended_ns, exit_site, exit_code = op.entered_ns, op.site, op.tag
        elif op.entered_ns > _last_ns(ops):  # it has not initialized them again
            left_ns = op.entered_ns
    if was_asked:
        # It was asked to end while it was blocked in these: that they failed is the launcher's doing.
        table.flags[ops[-_RECENT:].rows] &= ~np.uint8(ring_format.FAILED)
    if not _has_own_end(attempt_facts, key, header.pid, ended_ns):
        exit_code = None if was_asked else attempt_facts["exit_codes"].get(key)
    if left_ns and not error and not exit_code:  # without its groups it makes no call: whatever it did since
        ended_ns, exit_code = left_ns, 0
    if header.stopped:
        _close(table, start, end)
    stack, no_stack = _stack(path.with_suffix(".stacks"), ops, files.ahead_ns[rank])
    return Rank(
        rank,
        ops,
        events,
        host=header.host,
        pid=header.pid,
        dropped=dropped,
        unread=max(dropped - header.overwritten, 0),
        unnamed=header.unnamed,
        has_all_counters=not header.overwritten or 0 < header.counters < ring_format.MOST_COUNTERS,
        exit_code=exit_code,
        cause=str(attempt_facts.get("causes", {}).get(key, "")),
        error=error,
        error_site=error_site,
        handled=_handled_now(files, rank) if rank in files.handled else None,
        exit_site=exit_site,
        ended_ns=ended_ns,
        died_ns=(died_ns := 0 if was_asked else _died_ns(attempt_facts, key)),
        gone_ns=died_ns - files.ahead_ns[rank] if died_ns else 0,
        stack=stack,
        no_stack=no_stack,
        is_idle=attempt_facts.get("idle", {}).get(key),
        stopped=header.stopped,
    )


def _ops_without(table: Table, start: int, end: int, events: NDArray[np.intp]) -> Ops:
    """The rows of a rank that are no events. Most ranks have only one, at their end."""
    if not len(events):
        return Ops(table, range(start, end))
    if events[0] + len(events) == end:
        return Ops(table, range(start, int(events[0])))
    return _ops(table, np.delete(np.arange(start, end), events - start))


def _ops(table: Table, rows: NDArray[np.intp]) -> Ops:
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows):  # no other is between them
        return Ops(table, range(int(rows[0]), int(rows[-1]) + 1))
    return Ops(table, rows.astype(np.int32))  # kept for each rank: half as large as numpy's own indices


_RECENT = 16  # ops that a rank may have in flight at once; earlier ones failed before it was asked


def _close(table: Table, start: int, end: int) -> None:
    """Of a rank whose recording stopped: how its open ops went on is not known, so they count as completed."""
    rows = np.arange(start, end)
    times = (table.entered_ns[rows], table.issued_ns[rows], table.waited_ns[rows], table.completed_ns[rows])
    is_open = rows[table.completed_ns[rows] == 0]
    table.completed_ns[is_open] = max(int(each.max(initial=0)) for each in times)


def _has_own_end(attempt_facts: dict[str, Any], rank: str, pid: int, ended_ns: int) -> bool:
    """Whether only the ring knows how the rank ended: nobody watched it, or it is a child of the process that the
    launcher watched."""
    is_child = attempt_facts.get("pids", {}).get(rank, pid) != pid
    return "exit_codes" not in attempt_facts or (is_child and ended_ns > 0)


def _asked(attempt_facts: dict[str, Any], grace_s: float, files: _Files) -> dict[int, tuple[int, int]]:
    """By rank that the launcher asked to end, by the clock of its ops: the earliest moment at which it can have done
    so, as the rank is gone soon after; and when the first rank was gone that failed."""
    asked, codes = attempt_facts.get("asked", {}), attempt_facts.get("exit_codes", {})
    ended_ns = attempt_facts.get("ended_ns", {})
    gone_ns = {rank: int(ended_ns.get(str(rank), 0)) - ahead_ns for rank, ahead_ns in files.ahead_ns.items()}
    failed_ns = [ns for rank, ns in gone_ns.items() if codes.get(str(rank)) and not asked.get(str(rank))]
    first_ns, patience_ns = min(failed_ns, default=0), int((grace_s + _KILLED_S) * 1e9)
    return {rank: (max(ns - patience_ns, 1), first_ns) for rank, ns in gone_ns.items() if asked.get(str(rank))}


_KILLED_S = 5.0  # until a rank that was killed is gone, on a machine that is busy


def _died_ns(attempt_facts: dict[str, Any], rank: str) -> int:
    has_died = attempt_facts.get("exit_codes", {}).get(rank)
    return int(attempt_facts.get("ended_ns", {}).get(rank, 0)) if has_died else 0


_IS_END = np.zeros(256, dtype=np.bool_)
_IS_END[[ring_format.OP["exception"], ring_format.OP["exit"], ring_format.OP["destroy"]]] = True

_BEGINNINGS = re.compile(rf"Current thread|Stack \(most recent|^(?={ring_format.NO_STACK})", re.MULTILINE)
_MTIME_STEP_NS = 2_000_000_000  # file systems may count modification times in steps of this
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')


def _last_ns(ops: Ops) -> int:
    """When a rank last began or ended an op; 0: it made none."""
    return max(ops[-1].entered_ns, ops[-1].completed_ns) if ops else 0


def _stack(path: Path, ops: Ops, ahead_ns: int) -> tuple[tuple[Site, ...], str]:
    """What was written last: the stack of the main thread, or of the thread that crashed; or why there is none. Nothing
    if that was before its last op, by the wall clock: the rank has gone on since."""
    try:
        if path.stat().st_mtime_ns + _MTIME_STEP_NS < _last_ns(ops) + ahead_ns:
            return (), ""
        text = path.read_text(errors="replace")
    except OSError:
        return (), ""
    block = _BEGINNINGS.split(text)[-1].split("\n\n")[0]
    if block.startswith(ring_format.NO_STACK):
        return (), block.removeprefix(ring_format.NO_STACK).strip()
    return tuple(Site(file, int(line), function) for file, line, function in _FRAME.findall(block)), ""


def _error(op: Op) -> str:
    return f"{op.signature.get('error', 'an error')}: {op.signature.get('text', '')}".rstrip(": ")
