"""A ring whose records are written in C++."""

from rollcall.record import ring_format
from rollcall.record.cpp import pen
from rollcall.record.ring import Ring

_MOST_BEATS = 25  # of a rest: what came up meanwhile, like the first op on a GPU, waits no longer


class SwiftRing(Ring):
    """Files, names and what happens once are Python's, as before."""

    def attach(self, recorder: object) -> None:
        """Have the pen write here, and ask the recorder for names."""
        pen.begin(
            recorder,
            self._map,
            self._fd,
            self._first,
            self._capacity,
            ring_format.RECORD.size,
            ring_format.COUNT_AT,
            ring_format.HEADER_BYTES,
            ring_format.COUNTERS_AT,
            ring_format.MOST_COUNTERS,
            ring_format.SORTS,
            ring_format.OP["phase"],
            ring_format.OP["ddp_forward"],
            ring_format.OP["all_reduce"],
            ring_format.REDUCE_OPS.index("SUM"),
        )

    def add(
        self,
        op: int,
        flags: int = 0,
        group: int = 0,
        site: int = 0,
        signature: int = 0,
        peer: int = -1,
        tag: int = 0,
        thread: int = 0,
        reduce: int = 0,
        version: int = 0,
        size_bytes: int = 0,
        phase: int = 0,
    ) -> int:
        """Ops come by `pen.add` itself; this is for those who name a few things only."""
        mark: int = pen.add(op, flags, group, site, signature, peer, tag, thread, reduce, version, size_bytes)
        return mark

    @property
    def count(self) -> int:
        count: int = pen.count()
        return count

    def rest(self, seconds: float, idle_ns: int, is_brief: bool) -> None:
        """Without the interpreter, whose lock each look would take from the program."""
        pen.rest(int(seconds * 1e9), idle_ns, 1 if is_brief else _MOST_BEATS)

    def wake(self) -> None:
        pen.wake()

    def is_in_op(self) -> bool:
        """A backward may wait for its buckets, which are not its newest record."""
        return pen.is_waiting() or super().is_in_op()
