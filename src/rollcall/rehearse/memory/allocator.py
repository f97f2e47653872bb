"""A model of torch's caching allocator for CUDA: what it reserves from the card for the tensors that live.

The rules are those of c10's CUDACachingAllocator with its default settings. Sizes are rounded to 512 bytes. Requests of
up to 1 MiB share segments of 2 MiB, those under 10 MiB segments of 20 MiB, larger ones get segments of their own,
rounded to 2 MiB. A request takes the smallest free block of its stream that is large enough; what is left of the block
stays free, and free neighbours are joined. Segments go back to the card only if it has no room for another.
"""

import bisect
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

_ROUND_BYTES = 512
_SMALL_BYTES = 1 << 20  # the largest request of the pool of small blocks
_SMALL_SEGMENT_BYTES = 2 << 20
_LARGE_SEGMENT_BYTES = 20 << 20
_OWN_SEGMENT_BYTES = 10 << 20  # requests from here on get segments of their own
_ROUND_SEGMENT_BYTES = 2 << 20

NO_LIMIT = 1 << 62


@dataclass(slots=True, eq=False)
class Block:
    """A part of a segment. Neighbours are those of the same segment."""

    size_bytes: int
    address: int
    pool: tuple[int, bool]  # stream, and whether it is of the pool of small blocks
    is_free: bool = False
    before: "Block | None" = None
    after: "Block | None" = None

    @property
    def is_whole_segment(self) -> bool:
        return self.before is None and self.after is None


class Allocator:
    """The allocator of one card. It continues beyond the limit, so that the whole need becomes known;
    `has_overflowed` tells."""

    def __init__(self, limit_bytes: int = NO_LIMIT) -> None:
        self.limit_bytes = limit_bytes
        self.allocated_bytes = self.peak_allocated_bytes = 0
        self.reserved_bytes = self.peak_reserved_bytes = 0
        self.has_overflowed = False
        self._free: dict[tuple[int, bool], list[tuple[int, int]]] = defaultdict(list)  # sizes and addresses, sorted
        self._blocks: dict[int, Block] = {}  # the free ones, by address
        self._next_address = 0

    def allocate(self, size_bytes: int, stream: int = 0) -> Block:
        wanted = _round_up(size_bytes, _ROUND_BYTES)
        pool = stream, wanted <= _SMALL_BYTES
        block = self._take_free(wanted, pool) or self._reserve(_segment_bytes(wanted), pool)
        self._split(block, wanted)
        block.is_free = False
        self.allocated_bytes += block.size_bytes
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        return block

    def free(self, block: Block) -> None:
        self.allocated_bytes -= block.size_bytes
        block.is_free = True
        if block.before is not None and block.before.is_free:
            block = self._join(self._forget(block.before), block)
        if block.after is not None and block.after.is_free:
            block = self._join(block, self._forget(block.after))
        self._remember(block)

    def empty_cache(self) -> None:
        """Give back the segments in which nothing lives."""
        for block in [each for each in self._blocks.values() if each.is_whole_segment]:
            self.reserved_bytes -= self._forget(block).size_bytes

    def reset_peaks(self) -> None:
        self.peak_allocated_bytes, self.peak_reserved_bytes = self.allocated_bytes, self.reserved_bytes

    def _take_free(self, wanted: int, pool: tuple[int, bool]) -> Block | None:
        sizes = self._free[pool]
        place = bisect.bisect_left(sizes, (wanted, 0))
        return self._forget(self._blocks[sizes[place][1]]) if place < len(sizes) else None

    def _reserve(self, size_bytes: int, pool: tuple[int, bool]) -> Block:
        if self.reserved_bytes + size_bytes > self.limit_bytes:
            self.empty_cache()
            self.has_overflowed |= self.reserved_bytes + size_bytes > self.limit_bytes
        self.reserved_bytes += size_bytes
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        block = Block(size_bytes, self._next_address, pool)
        self._next_address += size_bytes
        return block

    def _split(self, block: Block, wanted: int) -> None:
        """What is left stays free; the pool of large blocks does not keep a rest of 1 MiB or less."""
        left = block.size_bytes - wanted
        is_small = block.pool[1]
        if left < _ROUND_BYTES if is_small else left <= _SMALL_BYTES:
            return
        rest = Block(left, block.address + wanted, block.pool, True, block, block.after)
        if block.after is not None:
            block.after.before = rest
        block.after, block.size_bytes = rest, wanted
        self._remember(rest)

    def _join(self, first: Block, second: Block) -> Block:
        first.size_bytes += second.size_bytes
        first.after = second.after
        if first.after is not None:
            first.after.before = first
        return first

    def _remember(self, block: Block) -> None:
        bisect.insort(self._free[block.pool], (block.size_bytes, block.address))
        self._blocks[block.address] = block

    def _forget(self, block: Block) -> Block:
        sizes = self._free[block.pool]
        del sizes[bisect.bisect_left(sizes, (block.size_bytes, block.address))]
        return self._blocks.pop(block.address)


class Log:
    """What was asked of an allocator, to be repeated on another card."""

    def __init__(self) -> None:
        self.events: list[tuple[int, int]] = []  # a size and its stream; or -1 and the number of the block to free
        self._numbers: dict[int, int] = {}  # of the blocks that live, by address

    def allocate(self, size_bytes: int, stream: int, block: Block) -> None:
        self._numbers[block.address] = len(self.events)
        self.events.append((size_bytes, stream))

    def free(self, block: Block) -> None:
        self.events.append((-1, self._numbers.pop(block.address)))


def replay(events: Iterable[tuple[int, int]], limit_bytes: int) -> Allocator:
    allocator = Allocator(limit_bytes)
    blocks: dict[int, Block] = {}
    for number, (size_bytes, which) in enumerate(events):
        if size_bytes < 0:
            allocator.free(blocks.pop(which))
        else:
            blocks[number] = allocator.allocate(size_bytes, which)
    return allocator


def _round_up(size: int, unit: int) -> int:
    return max(-(-size // unit), 1) * unit


def _segment_bytes(wanted: int) -> int:
    if wanted <= _SMALL_BYTES:
        return _SMALL_SEGMENT_BYTES
    return _LARGE_SEGMENT_BYTES if wanted < _OWN_SEGMENT_BYTES else _round_up(wanted, _ROUND_SEGMENT_BYTES)
