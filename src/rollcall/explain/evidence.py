"""A run with all that several checks need, each computed once."""

from functools import cached_property

import numpy as np

from rollcall.explain.load import Run
from rollcall.explain.matching import Calls, Pairs
from rollcall.explain.table import Op, Ops, Site
from rollcall.explain.waits import Intervals, Waits, count, intervals, waits_for


class Evidence:
    """`now_ns`: of a run that goes on, this moment, until which open ops last."""

    def __init__(self, run: Run, now_ns: int = 0) -> None:
        self.run, self.table = run, run.table
        self._now_ns = now_ns or run.until_ns
        self.calls = Calls(run)
        self.pairs = Pairs(run)

    @cached_property
    def intervals(self) -> Intervals:
        return intervals(self.run, self.calls, self.pairs, self._now_ns)

    @cached_property
    def waits(self) -> Waits:
        return count(self.run, self.calls, self.intervals)

    @cached_property
    def device(self) -> "Evidence | None":
        """The same run as torch's Flight Recorder saw it, if it left dumps beside the rings."""
        return Evidence(self.run.device) if self.run.device else None

    @cached_property
    def blocked(self) -> dict[int, Op]:
        """By rank: the op that it is blocked in."""
        rows = np.flatnonzero(self.table.is_blocked)
        return {int(self.table.rank[row]): self.table.get(row) for row in rows}  # of several, a rank's last

    @cached_property
    def signals(self) -> Ops:
        """Signals that ranks sent."""
        return self.table.where(self.table.is_one_of("signal"))

    def has_ended(self, rank: int) -> bool:
        found = self.run.ranks.get(rank)
        return found is not None and found.has_ended

    def waits_for(self, op: Op) -> list[int]:
        """The ranks that a blocked op waits for."""
        return waits_for(self.calls, op)

    def seen_last(self, rank: int) -> Site | None:
        """The line on which a rank was seen last: in an op, sending a signal, or by the sampler."""
        found = self.run.ranks[rank]
        last = [ops[-1] for ops in (found.ops, found.events) if ops]
        newest = max(last, key=lambda op: max(op.entered_ns, op.completed_ns), default=None)
        return newest.site if newest else None
