"""A folder of dumps → rings, as if rollcall had recorded the run."""

import gc
import json
import multiprocessing
import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rollcall.errors import UsageError
from rollcall.explain.dumps import entries, files, jobs, times
from rollcall.explain.dumps.entries import Dump
from rollcall.explain.loading import rings
from rollcall.protocol.rank_ranges import ranks_in_words
from rollcall.record import ring_format

_MANY = 40  # files from which on a second process pays off
_HUNG_NS = 60_000_000_000  # an op that was open for a minute when its dump was written; a step rarely takes so long
# Until then an open op is merely in flight: dumps are asked for when a job seems to hang, and ops rarely take seconds.
_IN_FLIGHT_NS = 2_000_000_000
_NOT_TOLD = (
    "read from Flight Recorder dumps, which do not tell reduce ops, roots, tags, splits, how a rank ended, or what it"
    " did between two calls"
)
_NO_ENDS = "these dumps do not tell when ops ended: how long they took is not known"
_ONLY_OPEN = "these dumps have only the ops that are not over: what was before, and who was slow, is not known"
_NO_LINES = "these dumps have no stacks, as those in JSON never do: the lines of the program are not known"


@dataclass(frozen=True)
class Dumps:
    """The dumps of one job as rings, with what was wrong with them."""

    rings: list[tuple[Path, rings.ReadRing]]
    world_size: int
    outcome: str
    until_ns: int  # when the dumps of a job that hangs were written
    problems: list[str]
    has_device_times: bool  # they tell how long each op took on the device
    has_only_open: bool  # they have no ops that are over
    held_by_lost: frozenset[int]  # ranks that wait, it seems, for an op that their recorder has overwritten
    not_begun: frozenset[int]  # ranks whose device has not begun the op that holds them up, though dumps tell when


def read(place: Path) -> Dumps:
    """UsageError if there is no dump, or if the dumps are of several jobs."""
    found, problems = _read_all(files.find(place))
    if not found:
        raise UsageError(f"no dump of {place} can be read: {'; '.join(problems[:3])}")
    dumps = jobs.newest_of_each_rank(found)
    job = jobs.one_job(dumps)
    _number_groups(dumps, job)
    _check_times(dumps)
    times.paired_from_the_end(dumps)
    times.number_channels(dumps)
    if not all(dump.has_times_of_ends for dump in dumps):
        times.reopen(dumps, job.groups)
    gaps = [*_left_out(found, dumps), *_gaps(dumps)]
    outcome, until_ns = _outcome(dumps), _until_ns(dumps)
    seen_until_ns = _seen_until_ns(dumps)
    if outcome == "running":
        times.without_later_than(dumps, seen_until_ns, _IN_FLIGHT_NS)
        times.without_half_exchanges(dumps)
    held_by_lost = frozenset(times.held_by_lost(dumps)) if outcome == "hung" else frozenset()
    folded = _folded(dumps, job)
    times.without_what_others_hold_up(dumps)
    times.settle(dumps, seen_until_ns - _IN_FLIGHT_NS if outcome == "running" else seen_until_ns)
    return Dumps(
        rings=[(dump.path, _ring(dump, job, folded.get(dump.rank, []))) for dump in dumps],
        world_size=job.world_size,
        outcome=outcome,
        until_ns=until_ns,
        problems=[_NOT_TOLD, *problems, *gaps, *_hidden(held_by_lost)],
        has_device_times=any(dump.took_ns.any() for dump in dumps),
        has_only_open=any(dump.has_only_open for dump in dumps),
        held_by_lost=held_by_lost,
        not_begun=frozenset(_not_begun(dumps)),
    )


def _read_all(paths: list[Path]) -> tuple[list[Dump], list[str]]:
    """The dumps, and what is wrong with the others. Files of another sort beside dumps are nobody's fault."""
    read = list(zip(paths, _each(paths), strict=True))
    found = [got for _, got in read if isinstance(got, Dump)]
    wrong = [(path, got) for path, got in read if not isinstance(got, Dump)]
    if found:
        wrong = [(path, error) for path, error in wrong if not isinstance(error, files.NotADumpError)]
    return found, list(_by_reason(wrong))


def _by_reason(wrong: list[tuple[Path, ValueError]]) -> Iterator[str]:
    """One sentence for all files with the same fault."""
    names: dict[str, list[str]] = {}
    for path, error in wrong:
        names.setdefault(str(error), []).append(path.name)
    for reason, alike in names.items():
        more = f" and {len(alike) - _FEW_NAMES:,} more files" if len(alike) > _FEW_NAMES else ""
        yield f"{', '.join(alike[:_FEW_NAMES])}{more}: {reason}"


_FEW_NAMES = 4


def _each(paths: list[Path]) -> Iterator[Dump | ValueError]:
    workers = min(os.cpu_count() or 1, len(paths) // _MANY)
    if workers < 2:
        yield from map(_try, paths)
        return
    # Nothing here has cycles, and looking for them takes a fifth of the time.
    with ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), initializer=gc.disable) as pool:
        yield from pool.map(_try, paths, chunksize=8)


def _try(path: Path) -> Dump | ValueError:
    try:
        return entries.read(path)
    except ValueError as error:
        return error


def _number_groups(dumps: list[Dump], job: jobs.Job) -> None:
    """From the groups of each dump to those of the job, and from ranks of a group to those of the world."""
    for dump, numbers in zip(dumps, job.numbers, strict=True):
        records = dump.records
        group = np.array([*numbers, 0], dtype=np.int64)[records["group"].astype(np.int64)]
        for number in set(numbers):
            ranks = np.array([*job.groups[number][1], -1])
            mine = (group == number) & dump.is_p2p & (records["peer"] >= 0)
            records["peer"][mine] = ranks[np.minimum(records["peer"][mine], len(ranks) - 1)]
        records["group"] = group + 1


def _check_times(dumps: list[Dump]) -> None:
    rows = times.Rows.of(dumps)
    if (apart := times.latest_and_earliest(rows)) is not None:
        latest, earliest = apart
        by_rank = {dump.rank: dump.path.name for dump in dumps}
        hours = (rows.created_ns[latest] - rows.created_ns[earliest]) / 3600e9
        one, other = (by_rank[int(rows.rank[row])] for row in (earliest, latest))
        raise jobs.mixed(f"the same call lies {hours:.1f} h apart in {one} and {other}, longer than its timeout")


def _outcome(dumps: list[Dump]) -> str:
    """An op that is open for long, or that torch gave up, is a hang. A rank that all ops of which are over may have
    ended in any way."""
    if any(dump.was_given_up for dump in dumps):
        return "hung"
    open_ns = [dump.records["entered_ns"][~dump.is_done].astype(np.int64) for dump in dumps]
    if not any(len(each) for each in open_ns):
        return "unknown"
    oldest_ns = min(int(each.min()) for each in open_ns if len(each))
    until_ns = max(max(dump.written_ns, dump.last_ns) for dump in dumps)
    return "hung" if until_ns - oldest_ns > _HUNG_NS else "running"


def _until_ns(dumps: list[Dump]) -> int:
    """When the last dump was written; 0 if no op is open. The time of a file that was copied is that of the copy, but
    torch gives up an op soon after its timeout."""
    longest = [
        int(dump.records["entered_ns"][~dump.is_done].astype(np.int64).max()) + int(dump.timeout_ns.max()) + _HUNG_NS
        for dump in dumps
        if not dump.is_done.all()
    ]
    return min(max(dump.written_ns for dump in dumps), max(longest)) if longest else 0


def _seen_until_ns(dumps: list[Dump]) -> int:
    """The moment until which all ranks are known: when the first dump was written. Of files whose times are not those
    of the dumps, the last moment of any of them."""
    if any(dump.written_ns < dump.last_ns for dump in dumps):
        return max(dump.last_ns for dump in dumps)
    return min(dump.written_ns for dump in dumps)


def _not_begun(dumps: list[Dump]) -> Iterator[int]:
    """torch tells that an op has begun on the device only with TORCH_NCCL_ENABLE_TIMING=1: if one that is not over
    has."""
    if any((dump.has_begun & ~dump.is_done).any() for dump in dumps):
        for dump in dumps:
            first = np.flatnonzero(~dump.is_done)[:1]
            if len(first) and not dump.has_begun[first[0]]:
                yield dump.rank


def _left_out(found: list[Dump], kept: list[Dump]) -> Iterator[str]:
    """A process has a recorder for each backend."""
    if backends := {dump.backend for dump in found} - {dump.backend for dump in kept} - {""}:
        yield f"dumps of {', '.join(sorted(backends))} are left out: those of {kept[0].backend} tell more"


def _folded(dumps: list[Dump], job: jobs.Job) -> dict[int, list[tuple[int, int]]]:
    """By rank: group, and how many of its collectives are not in the dump: overwritten, or from before the recorder was
    reset. Of a group without any op left, those before the oldest op that is left."""
    rows = times.Rows.of(dumps)
    found: dict[int, list[tuple[int, int]]] = {}
    for number, members in enumerate((frozenset(ranks) for _, ranks in job.groups), 1):
        calls = np.flatnonzero((rows.group == number) & ~rows.is_p2p)
        first = dict(_first_by_rank(rows.rank[calls], rows.seq[calls]))
        by_time = calls[np.argsort(rows.created_ns[calls])]
        for dump in dumps:
            if (
                dump.rank in members
                and (count := first.get(dump.rank, 1) - 1 or _earlier(dump, first, rows, by_time)) > 0
            ):
                found.setdefault(dump.rank, []).append((number, count))
    return found


def _earlier(dump: Dump, first: dict[int, int], rows: times.Rows, by_time: NDArray[np.intp]) -> int:
    """How many collectives of a group others made before the oldest op of a dump that has none of that group; or
    completed, since it has then made these, too."""
    if dump.rank in first or not dump.overwritten:
        return 0
    oldest_ns = int(dump.records["entered_ns"][:1].max(initial=0))
    is_earlier = rows.is_done[by_time] | (rows.created_ns[by_time] < oldest_ns)
    return int(rows.seq[by_time[is_earlier]].max(initial=0))


def _first_by_rank(rank: NDArray[np.int64], seq: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    order = np.lexsort((seq, rank))
    starts = order[np.flatnonzero(np.diff(rank[order], prepend=-1))]
    return zip(rank[starts].tolist(), seq[starts].tolist(), strict=True)


def _ring(dump: Dump, job: jobs.Job, folded: list[tuple[int, int]]) -> rings.ReadRing:
    used = {int(number) for number in np.unique(dump.records["group"])} | {number for number, _ in folded}
    groups = [("group", number, _group(*job.groups[number - 1])) for number in sorted(used)]
    sites = [("site", number, value) for number, value in enumerate(dump.sites, 1)]
    signatures = [("signature", number, value) for number, value in enumerate(dump.signatures, 1)]
    count = len(dump.records) + dump.overwritten + dump.unknown.total()
    kept = max(len(dump.records), 1)
    header = rings.Header(dump.rank, job.world_size, "", 0, count, 0, 0, kept, min(len(folded), _FEW), 0, 0)
    counters = [(number, ring_format.OP["all_reduce"], count, 0, 0) for number, count in folded]
    return rings.ReadRing(header, dump.records, [*groups, *sites, *signatures], counters)


_FEW = ring_format.MOST_COUNTERS - 1  # a ring with more has no room for all: here, all of them are known


@lru_cache(maxsize=1024)
def _group(name: str, ranks: tuple[int, ...]) -> bytes:
    return json.dumps({"name": name, "ranks": list(ranks)}).encode()


def _hidden(ranks: frozenset[int]) -> Iterator[str]:
    if ranks:
        yield f"{ranks_in_words(ranks)} may wait for an op that was overwritten: TORCH_FR_BUFFER_SIZE keeps more"


def _gaps(dumps: list[Dump]) -> Iterator[str]:
    """What these dumps lack, beyond what all lack."""
    if any(dump.has_only_open for dump in dumps):
        yield _ONLY_OPEN
    if not all(dump.has_times_of_ends for dump in dumps):
        yield _NO_ENDS
    if not any(dump.sites for dump in dumps) and any(len(dump.records) for dump in dumps):
        yield _NO_LINES
    unknown = sum((dump.unknown for dump in dumps), Counter[str]())
    if unknown:
        yield f"{unknown.total():,} ops are left out, since their names are not known: {', '.join(sorted(unknown)[:4])}"
    has_p2p = any(dump.is_p2p.any() for dump in dumps)
    if {dump.backend for dump in dumps} == {"gloo"} and not has_p2p:
        yield "gloo's recorder leaves out sends and receives before torch 2.15"
