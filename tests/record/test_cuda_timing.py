"""GPU timing without a GPU: the clock's decisions, over a stand-in for the few calls of CUDA that it makes."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rollcall.record.cuda_timing import CudaEvents, DeviceClock, loaded
from rollcall.record.ring import Ring
from rollcall.record.ring_format import OP


@dataclass
class Stream:
    device_index: int
    cuda_stream: int
    is_stuck: bool = False


@dataclass
class Event:
    cuda: "Device"
    stream: Stream | None = None
    queries: int = 0

    def record(self, stream: Stream) -> None:
        assert self.stream is None or self.stream.device_index == stream.device_index, "events have one device"
        self.cuda.touch()
        self.stream = stream

    def query(self) -> bool:
        self.cuda.touch()
        self.queries += 1
        assert self.stream is not None
        return not self.stream.is_stuck

    def synchronize(self) -> None:
        self.cuda.touch()

    def elapsed_time(self, other: "Event") -> float:
        assert self.stream is not None
        assert other.stream is not None
        assert self.stream.device_index == other.stream.device_index, "no time between devices"
        return 1.0


@dataclass
class Device(CudaEvents):
    """A context is opened on whatever device is current when something is asked, as CUDA does it."""

    stream: Stream = field(default_factory=lambda: Stream(0, 7))
    device: int = 0  # that is current in the thread that asks
    is_in_capture: bool = False
    can_relax: bool = True
    relaxed: int = 0
    contexts: set[int] = field(default_factory=set)
    events: list[Event] = field(default_factory=list)

    def touch(self) -> None:
        self.contexts.add(self.device)

    def is_capturing(self) -> bool:
        return self.is_in_capture

    def current_stream(self) -> Stream:
        return self.stream

    def new_stream(self) -> Stream:
        self.touch()
        return Stream(self.device, 1000)

    def new_event(self) -> Event:
        self.events.append(Event(self))
        return self.events[-1]

    @contextlib.contextmanager
    def on(self, device: int) -> Iterator[None]:
        before, self.device = self.device, device
        yield
        self.device = before

    def relax_capture(self) -> bool:
        self.relaxed += 1
        return self.can_relax


class Completions(Ring):
    """A ring that tells which ops were completed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "rank-0.ring", rank=0, world_size=1, attempt=0, host="here")
        self.over: list[int] = []

    def completed(self, at: int, at_ns: int = 0) -> None:
        super().completed(at, at_ns)
        self.over.append(at)

    def op(self) -> int:
        return self.add(OP["all_reduce"], group=1)


@pytest.fixture
def ring(tmp_path: Path) -> Completions:
    return Completions(tmp_path)


def _note(clock: DeviceClock, cuda: Device, ring: Completions, stream: Stream) -> int:
    """An op of the program, in whose thread the device of the stream is current."""
    mark = ring.op()
    cuda.stream = stream
    with cuda.on(stream.device_index):
        clock.note((mark,))
    return mark


def test_no_context_is_opened_on_a_device_that_the_rank_does_not_use(ring: Completions) -> None:
    """The sampler's thread has device 0 as its current one; the rank may have any other."""
    cuda = Device()
    clock = DeviceClock(ring, cuda)
    marks = [_note(clock, cuda, ring, Stream(3, 7)), _note(clock, cuda, ring, Stream(2, 7))]
    clock.settle_aside()
    assert (ring.over, cuda.contexts) == (marks, {2, 3})


def test_a_stream_that_hangs_hides_no_other(ring: Completions) -> None:
    """Ops on other streams are completed; its own are completed when it continues."""
    cuda = Device()
    clock = DeviceClock(ring, cuda)
    stuck = Stream(0, 7, is_stuck=True)
    first, second = _note(clock, cuda, ring, stuck), _note(clock, cuda, ring, Stream(0, 8))
    clock.settle_aside()
    assert ring.over == [second]
    stuck.is_stuck = False
    clock.settle_aside()
    assert ring.over == [second, first]


def test_events_are_used_again(ring: Completions) -> None:
    """Two of the stream are enough for any number of ops, and one that is the base."""
    cuda = Device()
    clock = DeviceClock(ring, cuda)
    for _ in range(5):
        marks = [_note(clock, cuda, ring, Stream(0, 7)) for _ in range(2)]
        clock.settle_aside()
        assert ring.over[-2:] == marks
    assert len(cuda.events) == 3


def test_few_events_are_asked_for_many_ops(ring: Completions) -> None:
    """They complete in order: each question halves what is not known yet."""
    cuda = Device()
    clock = DeviceClock(ring, cuda)
    marks = [_note(clock, cuda, ring, Stream(0, 7, is_stuck=number >= 600)) for number in range(1000)]
    clock.settle_aside()
    assert ring.over == marks[:600]
    assert sum(event.queries for event in cuda.events) <= 10


def test_the_thread_relaxes_its_capture_mode_once(ring: Completions) -> None:
    """Not before there is something to ask: a program without a GPU has no CUDA to ask."""
    cuda = Device()
    clock = DeviceClock(ring, cuda)
    clock.settle_aside()
    assert (cuda.relaxed, cuda.contexts, clock.needs_thread) == (0, set(), False)
    for _ in range(3):
        _note(clock, cuda, ring, Stream(0, 7))
        clock.settle_aside()
    assert (cuda.relaxed, len(ring.over)) == (1, 3)


def test_a_thread_that_cannot_relax_asks_nothing(ring: Completions) -> None:
    """The next op and the end of the program settle then, in the program's own thread."""
    cuda = Device(can_relax=False)
    clock = DeviceClock(ring, cuda)
    stream = Stream(0, 7, is_stuck=True)
    first = _note(clock, cuda, ring, stream)
    clock.settle_aside()
    clock.settle_aside()
    assert ([event.queries for event in cuda.events], clock.needs_thread) == ([0], False)
    second = _note(clock, cuda, ring, stream)
    assert ring.over == []
    stream.is_stuck = False
    third = _note(clock, cuda, ring, stream)
    assert ring.over == [first, second, third]


def test_nothing_is_asked_during_a_capture(ring: Completions) -> None:
    """An op that is captured is complete for the host at once; the others wait until the capture has ended."""
    cuda = Device(can_relax=False)
    clock = DeviceClock(ring, cuda)
    before = _note(clock, cuda, ring, Stream(0, 7))
    clock.settle_aside()
    cuda.is_in_capture = True
    captured = _note(clock, cuda, ring, Stream(0, 9))
    clock.settle()
    assert (ring.over, cuda.events[0].queries) == ([captured], 0)
    cuda.is_in_capture = False
    clock.settle()
    assert ring.over == [captured, before]


def test_a_stream_that_hangs_fills_no_memory(ring: Completions) -> None:
    """Beyond a limit, no event is kept."""
    cuda = Device()
    clock = DeviceClock(ring, cuda)
    for _ in range(17_000):
        _note(clock, cuda, ring, Stream(0, 7, is_stuck=True))
    assert len(cuda.events) == 16384


def test_a_library_is_found_where_the_process_has_it() -> None:
    """With its whole path, or not at all."""
    path = loaded("libtorch_cpu")
    assert path is not None
    assert Path(path).is_file()
    assert loaded("libno-such-library") is None
