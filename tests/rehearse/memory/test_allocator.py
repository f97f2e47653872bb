"""The model of torch's caching allocator follows its rules."""

from hypothesis import given
from hypothesis import strategies as st

from rollcall.rehearse.memory.allocator import Allocator, Log, replay

KIB, MIB = 1 << 10, 1 << 20


def test_small_requests_share_segments_of_two_mebibytes() -> None:
    allocator = Allocator()
    for _ in range(3):
        allocator.allocate(600 * KIB)
    assert allocator.reserved_bytes == 2 * MIB
    allocator.allocate(600 * KIB)
    assert allocator.reserved_bytes == 4 * MIB


def test_sizes_are_rounded_to_512_bytes() -> None:
    allocator = Allocator()
    allocator.allocate(1)
    allocator.allocate(513)
    assert allocator.allocated_bytes == 512 + 1024


def test_requests_under_ten_mebibytes_share_segments_of_twenty() -> None:
    allocator = Allocator()
    allocator.allocate(8 * MIB)
    allocator.allocate(8 * MIB)
    assert allocator.reserved_bytes == 20 * MIB


def test_a_large_request_has_a_segment_of_its_own_rounded_to_two_mebibytes() -> None:
    allocator = Allocator()
    block = allocator.allocate(11 * MIB)
    assert (allocator.reserved_bytes, block.size_bytes) == (12 * MIB, 12 * MIB)  # a rest of 1 MiB is not split off
    allocator.allocate(33 * MIB - 1)
    assert allocator.reserved_bytes == 12 * MIB + 34 * MIB


def test_the_smallest_free_block_that_is_large_enough_is_taken() -> None:
    allocator = Allocator()
    large, small = allocator.allocate(64 * MIB), allocator.allocate(32 * MIB)
    address = small.address
    allocator.free(large)
    allocator.free(small)
    assert allocator.allocate(30 * MIB).address == address
    assert allocator.reserved_bytes == 96 * MIB


def test_a_free_block_of_another_stream_is_not_taken() -> None:
    allocator = Allocator()
    allocator.free(allocator.allocate(32 * MIB, stream=1))
    allocator.allocate(32 * MIB, stream=0)
    assert allocator.reserved_bytes == 64 * MIB


def test_free_neighbours_are_joined() -> None:
    allocator = Allocator()
    blocks = [allocator.allocate(5 * MIB) for _ in range(4)]
    for block in (blocks[0], blocks[2], blocks[1], blocks[3]):
        allocator.free(block)
    allocator.allocate(9 * MIB)
    allocator.allocate(9 * MIB)
    assert allocator.reserved_bytes == 20 * MIB


def test_free_segments_go_back_before_a_card_is_full() -> None:
    allocator = Allocator(limit_bytes=100 * MIB)
    allocator.free(allocator.allocate(60 * MIB))
    allocator.allocate(80 * MIB)
    assert (allocator.reserved_bytes, allocator.has_overflowed) == (80 * MIB, False)
    allocator.allocate(40 * MIB)
    assert allocator.has_overflowed


def test_what_is_fragmented_does_not_fit_although_the_sum_would() -> None:
    allocator = Allocator(limit_bytes=40 * MIB)
    blocks = [allocator.allocate(9 * MIB) for _ in range(4)]
    for block in blocks[::2]:
        allocator.free(block)
    allocator.allocate(20 * MIB)
    assert allocator.has_overflowed


REQUESTS = st.lists(
    st.tuples(st.integers(1, 30 * MIB), st.integers(0, 2), st.integers(0, 1 << 16), st.booleans()), max_size=60
)


@given(REQUESTS)
def test_what_is_freed_is_whole_again(requests: list[tuple[int, int, int, bool]]) -> None:
    """At the end all segments are free, and a log of it gives the same peaks."""
    allocator, log, live = Allocator(), Log(), []
    for size, stream, which, frees in requests:
        if frees and live:
            block = live.pop(which % len(live))
            log.free(block)
            allocator.free(block)
        block = allocator.allocate(size, stream)
        log.allocate(size, stream, block)
        live.append(block)
        assert allocator.allocated_bytes == sum(each.size_bytes for each in live) <= allocator.reserved_bytes
    again = replay(log.events, 1 << 60)
    peaks = allocator.peak_allocated_bytes, allocator.peak_reserved_bytes
    assert (again.peak_allocated_bytes, again.peak_reserved_bytes) == peaks
    for block in live:
        allocator.free(block)
    allocator.empty_cache()
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (0, 0)
