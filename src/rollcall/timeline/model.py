"""The ops of all ranks as bars on lanes: from when a rank was blocked, how long it waited, how long it communicated.

All of it is columns: a million ops are a few arrays.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollcall.explain.evidence import View
from rollcall.explain.load import Run
from rollcall.explain.table import Site
from rollcall.explain.waits import blocked_since_ns, last_rows
from rollcall.record import ring_format

_NEVER = np.iinfo(np.int64).max
_ROOT_GIVES = ("broadcast", "scatter")  # the others wait for the root, and the root for nobody
_MOST_BANDS = 20_000
_MOST_SAMPLES = 300_000
_MOST_TEXT = 160
_MIX = np.uint64(0x9E3779B97F4A7C15)  # odd, and its bits are all over the place


@dataclass(frozen=True)
class Bars:
    """The ops of one attempt, rank by rank, each rank's in the order in which they blocked it. Times in nanoseconds."""

    row: NDArray[np.intp]  # in the table
    rank: NDArray[np.int32]
    entered_ns: NDArray[np.int64]
    begin_ns: NDArray[np.int64]  # from when on it blocked its rank: of an async op, when it was waited for
    wait_ns: NDArray[np.int64]
    busy_ns: NDArray[np.int64]
    call: NDArray[np.int64]
    last_rank: NDArray[np.int64]  # of its call: the last to arrive; -1 where somebody never came, or nobody else has to
    is_open: NDArray[np.bool_]  # it never came to its end
    end_ns: int = 0


def draw(view: View, now_ns: int = 0) -> Bars:
    """Of each op: when its rank was blocked, and how long it waited for others there.

    Where nobody compared the hosts' clocks, nobody is said to wait, and every rank's time begins with its first op.
    """
    table = view.table
    blocked_ns = blocked_since_ns(table)
    begin_ns = np.where(blocked_ns == _NEVER, table.entered_ns, blocked_ns)
    end_ns = max(_end_ns(view.run), now_ns)
    finish_ns = np.where(table.completed_ns > 0, table.completed_ns, _until_next(view, end_ns))
    finish_ns = np.where(blocked_ns == _NEVER, begin_ns, np.maximum(finish_ns, begin_ns))
    call, last, arrived_ns = _calls(view)
    is_open = table.is_blocked
    # Where somebody is still missing, all of the time was waiting; else until the last had come.
    until_ns = np.where(last >= 0, arrived_ns, np.where(table.completed_ns > 0, begin_ns, finish_ns))
    until_ns = np.where((until_ns > finish_ns) & ~is_open, begin_ns, until_ns)
    wait_ns = np.clip(until_ns, begin_ns, finish_ns) - begin_ns
    shift_ns = np.zeros(len(table), dtype=np.int64)
    if not view.run.is_one_clock:
        wait_ns, last, shift_ns = np.zeros_like(wait_ns), np.arange(len(table)), _own_beginnings(view)
    kept = np.flatnonzero(~table.is_event)
    order = kept[np.lexsort((begin_ns[kept], table.rank[kept]))]
    return Bars(
        row=order,
        rank=table.rank[order],
        entered_ns=(table.entered_ns - shift_ns)[order],
        begin_ns=(begin_ns - shift_ns)[order],
        wait_ns=wait_ns[order],
        busy_ns=(finish_ns - begin_ns - wait_ns)[order],
        call=call[order],
        last_rank=np.where(last >= 0, table.rank[last], -1)[order],
        is_open=is_open[order],
        end_ns=end_ns - int(shift_ns.min()) if len(table) else end_ns,
    )


def _own_beginnings(view: View) -> NDArray[np.int64]:
    """Per op: how far its rank's first op is behind the first of all."""
    table = view.table
    firsts = {rank: int(table.entered_ns[low:high].min()) for rank, (low, high) in table.spans.items() if low < high}
    zero = min(firsts.values(), default=0)
    shift = np.zeros(len(table), dtype=np.int64)
    for rank, first in firsts.items():
        shift[slice(*table.spans[rank])] = first - zero
    return shift


def _end_ns(run: Run) -> int:
    table = run.table
    if not len(table):
        return 0
    return int(max(table.entered_ns.max(), table.completed_ns.max(), table.waited_ns.max()))


def _until_next(view: View, end_ns: int) -> NDArray[np.int64]:
    """For ops without an end: what failed was over when its rank did the next thing; the others last to this day."""
    table = view.table
    following = np.append(table.entered_ns[1:], end_ns)
    is_last = np.append(table.rank[1:] != table.rank[:-1], True)
    over = np.where(is_last, end_ns, following)
    return np.where(table.has_failed, over, end_ns)


def _calls(view: View) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Per op: the number of its call, the row of the last to arrive (-1: somebody is missing), and when that was."""
    table, calls, pairs = view.table, view.calls, view.pairs
    call = np.full(len(table), -1, dtype=np.int64)
    last = np.full(len(table), -1, dtype=np.int64)
    if len(calls):
        call[calls.rows] = np.repeat(np.arange(len(calls)), calls.sizes)
        last[calls.rows] = np.repeat(np.where(calls.has_all & (calls.sizes > 1), last_rows(calls), -1), calls.sizes)
        _wait_for_roots(view, call, last)
    sends, recvs = pairs.met()
    numbers = len(calls) + np.arange(len(sends))
    call[sends] = call[recvs] = numbers
    later = np.where(table.entered_ns[sends] > table.entered_ns[recvs], sends, recvs)
    last[sends] = last[recvs] = later
    alone = np.flatnonzero(call < 0)
    call[alone] = len(calls) + len(sends) + np.arange(len(alone))
    arrived_ns = np.where(last >= 0, table.entered_ns[last], 0)
    # What was over before the last came did not wait for it: a buffered send, the root of a broadcast.
    is_over = (table.completed_ns > 0) & (table.completed_ns < arrived_ns)
    return call, np.where(is_over, np.arange(len(table)), last), np.where(is_over, table.entered_ns, arrived_ns)


def _wait_for_roots(view: View, call: NDArray[np.int64], last: NDArray[np.int64]) -> None:
    """In a broadcast everyone waits for the root alone."""
    table, calls = view.table, view.calls
    rooted = calls.rows[table.is_one_of(*_ROOT_GIVES)[calls.rows] & (last[calls.rows] >= 0)]
    roots = rooted[table.rank[rooted] == table.peer[rooted]]
    root_of = np.full(len(calls), -1, dtype=np.int64)
    root_of[call[roots]] = roots
    known = rooted[root_of[call[rooted]] >= 0]
    last[known] = root_of[call[known]]


# What ops have in common, in words.


@dataclass(frozen=True)
class Kinds:
    """Ops alike in everything but their time: one number each, and what it stands for."""

    number: NDArray[np.int64]  # per bar
    told: list[dict[str, Any]] = field(default_factory=list)


def kinds(view: View, bars: Bars) -> Kinds:
    table = view.table
    if not len(bars.row):
        return Kinds(np.zeros(0, dtype=np.int64))
    names = ("op", "group", "site", "signature", "reduce", "peer", "tag", "phase", "thread", "size_bytes")
    flags = table.flags & (ring_format.ASYNC | ring_format.FAILED | ring_format.BUCKET)
    taken = [column[bars.row] for column in (*(getattr(table, name) for name in names), flags)]
    differing = [column for column in taken if column.min() != column.max()]
    first, number = _classes(differing, len(bars.row))
    return Kinds(number, [_tell(view, int(bars.row[place])) for place in first])


def _classes(columns: list[NDArray[Any]], length: int) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
    """Rows that are alike in all columns: the first row of each class, and of each row its class."""
    mixed = np.zeros(length, dtype=np.uint64)
    for column in columns:  # one number for all of a row: sorting once is much of the time of a page
        mixed = (mixed + column.astype(np.int64).view(np.uint64)) * _MIX
        mixed ^= mixed >> np.uint64(29)
    _, first, number = np.unique(mixed, return_index=True, return_inverse=True)
    if all((column == column[first[number]]).all() for column in columns):
        return first, number
    number = np.zeros(length, dtype=np.int64)  # two rows that differ have the same number after all
    for column in columns:
        _, part = np.unique(column, return_inverse=True)
        _, first, number = np.unique(number * (int(part.max()) + 1) + part, return_index=True, return_inverse=True)
    return first, number


def _tell(view: View, row: int) -> dict[str, Any]:
    op = view.table.get(row)
    told: dict[str, Any] = {"op": op.op, "group": op.group.name, "ranks": len(op.group.ranks), "bytes": op.size_bytes}
    if op.site:
        told["site"], told["function"] = str(op.site), op.site.function[:_MOST_TEXT]
    if tensors := tensors_in_words(op.signature):
        told["tensors"] = tensors
    more = {
        "reduce": op.reduce,
        "phase": op.phase,
        "thread": op.thread,
        "async": op.is_async,
        "failed": op.is_failed,
        "ddp": op.is_bucket,
        "tag": op.tag,
    }
    told |= {name: value for name, value in more.items() if value}
    if op.peer >= 0:
        told["peer"] = op.peer
    return told


def tensors_in_words(signature: dict[str, Any]) -> str:
    """`float32 [64, 128]`, and how many more there are."""
    shapes, dtypes = signature.get("shapes") or [], signature.get("dtypes") or []
    if not shapes or not dtypes:
        return ""
    text = f"{dtypes[0]} {shapes[0]}"
    return (text if len(shapes) == 1 else f"{text} and {len(shapes) - 1} more")[:_MOST_TEXT]


@dataclass(frozen=True)
class Band:
    """A phase of the program."""

    name: str
    begin_ns: int
    end_ns: int


def bands(view: View, bars: Bars) -> list[Band]:
    """The phases, as the first rank that names any went through them: all run the same program."""
    table = view.table
    rows = np.flatnonzero(table.is_one_of("phase", "ddp_forward"))
    mine = rows[table.rank[rows] == table.rank[rows[0]]][:_MOST_BANDS] if len(rows) else rows
    return [Band(op.phase[:_MOST_TEXT], op.entered_ns, op.completed_ns or bars.end_ns) for op in map(table.get, mine)]


@dataclass(frozen=True)
class Seen:
    """Where ranks were while they were in no op, rank by rank, each from when to when. Times in nanoseconds."""

    rank: NDArray[np.int32]
    begin_ns: NDArray[np.int64]
    length_ns: NDArray[np.int64]
    place: NDArray[np.int64]  # one of
    places: list[str]


def seen(view: View) -> Seen:
    """The samples of main threads; of very many, the longest."""
    table = view.table
    rows = np.flatnonzero(table.is_one_of("sample") & (table.thread == 0))
    length_ns = np.maximum(table.completed_ns[rows] - table.entered_ns[rows], 0)
    if len(rows) > _MOST_SAMPLES:
        longest = np.sort(np.argpartition(-length_ns, _MOST_SAMPLES)[:_MOST_SAMPLES])
        rows, length_ns = rows[longest], length_ns[longest]
    begin_ns = table.entered_ns[rows]
    if not view.run.is_one_clock and len(rows):
        begin_ns = begin_ns - _own_beginnings(view)[rows]
    order = np.lexsort((begin_ns, table.rank[rows]))
    sites, place = np.unique(table.site[rows[order]], return_inverse=True)
    places = [site_in_words(table.names.sites[site]) for site in sites.tolist()]
    return Seen(table.rank[rows[order]], begin_ns[order], length_ns[order], place, places)


def site_in_words(site: Site | None) -> str:
    return f"{site} in {site.function}"[:_MOST_TEXT] if site else ""
