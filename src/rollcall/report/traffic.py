"""What went over the network: by op and site, and by size."""

from dataclasses import dataclass

import numpy as np

from rollcall.explain.evidence import View
from rollcall.record import ring_format
from rollcall.timeline.model import Bars, site_in_words

_MOST_POINTS = 2000


@dataclass(frozen=True)
class Line:
    """All ops of one sort, made on one line of the program."""

    op: str
    site: str
    group: str
    count: int
    size_bytes: int
    wait_s: float
    busy_s: float

    @property
    def mean_s(self) -> float:
        return (self.wait_s + self.busy_s) / self.count


@dataclass(frozen=True)
class Point:
    """Ops of one sort and size: what each carried, and how fast, once all were there."""

    op: str
    size_bytes: int
    bytes_per_s: float  # the median
    count: int


def by_site(view: View, bars: Bars) -> list[Line]:
    """The one that took longest first."""
    table = view.table
    if not len(bars.row):
        return []
    op, site, group = (column[bars.row].astype(np.int64) for column in (table.op, table.site, table.group))
    key = (op * (int(site.max()) + 1) + site) * (int(group.max()) + 1) + group
    _, first, number = np.unique(key, return_index=True, return_inverse=True)
    count = np.bincount(number)
    size = np.bincount(number, table.size_bytes[bars.row])
    wait, busy = np.bincount(number, bars.wait_ns / 1e9), np.bincount(number, bars.busy_ns / 1e9)
    lines = [
        Line(
            ring_format.OPS[op[place]],
            site_in_words(table.names.sites[site[place]]),
            table.names.groups[group[place]].name,
            int(count[each]),
            int(size[each]),
            float(wait[each]),
            float(busy[each]),
        )
        for each, place in enumerate(first)
    ]
    return sorted(lines, key=lambda line: -(line.wait_s + line.busy_s))


def by_size(view: View, bars: Bars) -> list[Point]:
    """Ops that came to their end and carried something."""
    table = view.table
    size = table.size_bytes[bars.row]
    good = np.flatnonzero((size > 0) & (bars.busy_ns > 0) & ~bars.is_open & ~table.has_failed[bars.row])
    if not len(good):
        return []
    key = table.op[bars.row[good]].astype(np.int64) * (int(size.max()) + 1) + size[good]
    speed = size[good] / (bars.busy_ns[good] / 1e9)
    order = np.lexsort((speed, key))
    starts = np.flatnonzero(np.diff(key[order], prepend=-1))
    counts = np.diff(starts, append=len(order))
    middles = order[starts + counts // 2]
    points = [
        Point(ring_format.OPS[table.op[bars.row[good[m]]]], int(size[good[m]]), float(speed[m]), int(n))
        for m, n in zip(middles, counts, strict=True)
    ]
    return sorted(points, key=lambda point: -point.count)[:_MOST_POINTS]
