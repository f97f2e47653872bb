"""A running job, as it was at one moment.

The rings are read one after the other, and the ranks write meanwhile: of a ring that is read last, later ops are known
than of the first one. What began or ended after the moment at which reading began is undone, so that all ranks are seen
at the same time. A record is published before its op begins. So if one rank has completed a call, the ops of the other
ranks are there, too.
"""

import os
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollcall.explain.loading.rings import Header
from rollcall.explain.loading.table import Readings
from rollcall.record import ring_format


@dataclass(frozen=True)
class ClockReading:
    """One moment by the two clocks of this machine."""

    monotonic_ns: int
    wall_ns: int
    is_launchers_host: bool

    @classmethod
    def now(cls, is_launchers_host: bool) -> "ClockReading":
        return cls(time.monotonic_ns(), time.time_ns(), is_launchers_host)

    def by_clock_of(self, header: Header, readings: Readings) -> int:
        """By the clock of a ring: as the launcher on this host has compared it, or the same clock; else by the wall
        clock, since the header of a ring has one moment by both clocks."""
        if self.is_launchers_host and readings:
            return self.monotonic_ns + readings[-1][1]
        by_wall_ns = self.wall_ns - (header.wall_ns - header.monotonic_ns)
        is_same_boot = abs(by_wall_ns - self.monotonic_ns) < _MOST_SET_NS
        return self.monotonic_ns if header.host == os.uname().nodename and is_same_boot else by_wall_ns


# By how much the wall clock of a machine may have been set during a run. After a reboot, the monotonic clock has
# begun anew, and the two differ by more.
_MOST_SET_NS = 60_000_000_000


_MOST_NS = (1 << 63) - 1


def as_of(records: NDArray[Any], at_ns: int) -> NDArray[Any]:
    """The records of a ring as they were at a moment by its clock."""
    at_ns = min(max(at_ns, 0), _MOST_NS)  # the clocks of a damaged header may say anything
    kept = records[records["entered_ns"] <= at_ns].copy()
    is_sample = kept["op"] == ring_format.OP["sample"]
    kept["completed_ns"][is_sample] = np.minimum(kept["completed_ns"][is_sample], at_ns)  # it was seen there until then
    for name in ("issued_ns", "waited_ns", "completed_ns"):
        is_later = kept[name] > at_ns
        kept[name][is_later] = 0
        if name == "waited_ns":
            kept["flags"][is_later] &= np.uint16(~ring_format.WAITED & 0xFFFF)
    if len(kept) and len(kept) < len(records):
        # When an op failed is not recorded. If its rank did nothing else before the moment, it may have been later.
        kept["flags"][-1] &= np.uint16(~ring_format.FAILED & 0xFFFF)
    return kept
