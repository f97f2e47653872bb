"""A ring whose records are written in C++. Its file and its names are Python's."""

from rollcall.record import ring_format
from rollcall.record.cpp import library
from rollcall.record.ring import Ring

_MOST_INTERVALS = 25  # of a sleep: then the sampler's thread looks for other work


class CppRing(Ring):
    write = library.write  # C functions: Python does not bind them to the instance
    completed = library.completed
    received_from = library.received_from
    wake = library.wake

    def attach(self, recorder: object) -> None:
        """Have C++ write to this ring, and ask the recorder for numbers of names."""
        library.begin(
            recorder,
            self._map,
            self._file.fd,
            self._file.path,
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

    @property
    def count(self) -> int:
        count: int = library.count()
        return count

    def sleep(self, seconds: float, idle_ns: int, is_brief: bool) -> None:
        """Sleeps without the GIL: checking whether the rank is idle takes nothing from the program."""
        library.sleep(int(seconds * 1e9), idle_ns, 1 if is_brief else _MOST_INTERVALS)

    def is_blocked(self) -> bool:
        """A backward may wait for its buckets, which are not the newest record."""
        return library.is_waiting() or super().is_blocked()
