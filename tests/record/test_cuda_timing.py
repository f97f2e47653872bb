"""GPU timing without a GPU: the clock's decisions, over a stand-in for the few calls of CUDA that it makes. Both clocks
pass the same tests: Python's has a stand-in in Python, that of C++ one for torch's device guard, and one for that and
CUDA's driver (fake_cuda.cpp)."""

import contextlib
import ctypes
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rollcall import native
from rollcall.record import cuda_timing
from rollcall.record.cuda_timing import ARRIVED, COMPLETED, WAITED, CudaEvents, DeviceClock, loaded
from rollcall.record.ring import Ring
from rollcall.record.ring_format import FIELDS, OP, RECORD
from tests.record.conftest import is_built

DEVICES = range(8)
TIMES = {ARRIVED: "issued_ns", WAITED: "waited_ns", COMPLETED: "completed_ns"}  # fields of a record, by moment
FAKE_CUDA = Path(__file__).with_name("fake_cuda.cpp")


class Gpu(CudaEvents):
    """What both stand-ins share. Streams are numbers; one that is stuck completes no event until `go_on`."""

    def __init__(self) -> None:
        self.is_in_capture, self.can_relax, self.relaxed = False, True, 0

    def is_capturing(self) -> bool:
        return self.is_in_capture

    def capture(self, is_on: bool) -> None:
        self.is_in_capture = is_on

    def relax_capture(self) -> bool:
        self.relaxed += 1
        return self.can_relax

    def use_stream(self, stream: int, is_stuck: bool) -> None:
        raise NotImplementedError

    def go_on(self, stream: int) -> None:
        raise NotImplementedError

    def counts(self) -> tuple[int, int]:
        """How many events were made, and how many questions asked."""
        raise NotImplementedError

    def contexts(self) -> set[int]:
        """The devices that have one: a context is opened on whatever device is current when something is asked."""
        raise NotImplementedError


@dataclass
class Stream:
    device_index: int
    cuda_stream: int


class Event:
    def __init__(self, gpu: "PythonGpu") -> None:
        self.gpu, self.stream, self.is_stuck, self.queries = gpu, Stream(-1, -1), False, 0

    def record(self, stream: Stream) -> None:
        assert self.stream.device_index in (-1, stream.device_index), "events have one device"
        self.gpu.touch()
        self.stream, self.is_stuck = stream, stream is self.gpu.stream and self.gpu.is_stuck

    def query(self) -> bool:
        self.gpu.touch()
        self.queries += 1
        return not self.is_stuck

    def synchronize(self) -> None:
        self.gpu.touch()

    def elapsed_time(self, other: "Event") -> float:
        assert self.stream.device_index == other.stream.device_index, "no time between devices"
        return 1.0


class PythonGpu(Gpu):
    def __init__(self) -> None:
        super().__init__()
        self.device = 0
        self.stream, self.is_stuck = Stream(0, 7), False
        self.touched: set[int] = set()
        self.events: list[Event] = []

    def touch(self) -> None:
        self.touched.add(self.device)

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

    def use_stream(self, stream: int, is_stuck: bool) -> None:
        self.stream, self.is_stuck = Stream(self.device, stream), is_stuck

    def go_on(self, stream: int) -> None:
        for event in self.events:
            event.is_stuck = event.is_stuck and event.stream.cuda_stream != stream

    def counts(self) -> tuple[int, int]:
        return len(self.events), sum(event.queries for event in self.events)

    def contexts(self) -> set[int]:
        return self.touched


class CppGpu(Gpu):
    def __init__(self, *, has_driver: bool) -> None:
        super().__init__()
        self.path, self.has_driver = str(native.build(FAKE_CUDA)), has_driver
        self.fake = ctypes.CDLL(self.path)
        self.fake.fake_has_context.restype = ctypes.c_bool
        self.fake.fake_begin()

    def driver(self) -> str | None:
        return self.path if self.has_driver else None

    def stream_handle(self, device: int) -> int:
        return self.stream

    def capture(self, is_on: bool) -> None:
        super().capture(is_on)
        self.fake.fake_capture(ctypes.c_bool(is_on))

    @contextlib.contextmanager
    def on(self, device: int) -> Iterator[None]:
        before = self.fake.fake_exchange_device(device)
        yield
        self.fake.fake_exchange_device(before)

    def use_stream(self, stream: int, is_stuck: bool) -> None:
        self.stream = stream
        self.fake.fake_use_stream(stream, ctypes.c_bool(is_stuck))

    def go_on(self, stream: int) -> None:
        self.fake.fake_continue(stream)

    def counts(self) -> tuple[int, int]:
        return self.fake.fake_event_count(), self.fake.fake_query_count()

    def contexts(self) -> set[int]:
        return {device for device in DEVICES if self.fake.fake_has_context(device)}


class Rank:
    """A rank that uses a GPU: its ring, and its clock."""

    def __init__(self, ring_class: type[Ring], clock_class: type[DeviceClock], gpu: Gpu, folder: Path) -> None:
        self.gpu = gpu
        self.ring: Any = ring_class(folder / "rank-0.ring", rank=0, world_size=1, attempt=0, host="here")
        if hasattr(self.ring, "attach"):
            self.ring.attach(self)
        self.clock = clock_class(self.ring, gpu)
        self.marks: list[int] = []

    def op(self, stream: int, device: int = 0, *, is_stuck: bool = False) -> int:
        """An op that the host has queued."""
        self.marks.append(self.ring.add(OP["all_reduce"], group=1))
        self.note(COMPLETED, stream, device, is_stuck=is_stuck)
        return self.marks[-1]

    def note(self, moment: int, stream: int, device: int = 0, *, is_stuck: bool = False) -> None:
        """Of the newest op. In the thread of the program the device of the stream is current."""
        with self.gpu.on(device):
            self.gpu.use_stream(stream, is_stuck)
            self.clock.note((self.marks[-1],), moment)

    def time_ns(self, mark: int, moment: int) -> int:
        record = dict(zip(FIELDS, RECORD.unpack_from(self.ring._map, mark), strict=True))
        return int(record[TIMES[moment]])

    @property
    def over(self) -> list[int]:
        """The ops that have completed."""
        return [mark for mark in self.marks if self.time_ns(mark, COMPLETED)]


def cpp_rank(folder: Path, *, has_driver: bool) -> Rank:
    if native.find(FAKE_CUDA) is None and shutil.which("g++") is None:
        pytest.skip("needs g++")
    from rollcall.record.cpp.device_clock import CppDeviceClock  # here: they cannot be imported where not compiled
    from rollcall.record.cpp.ring import CppRing

    return Rank(CppRing, CppDeviceClock, CppGpu(has_driver=has_driver), folder)


@pytest.fixture(params=[pytest.param("driver", marks=is_built), pytest.param("guard", marks=is_built), "python"])
def rank(tmp_path: Path, request: pytest.FixtureRequest) -> Rank:
    if request.param == "python":
        return Rank(Ring, DeviceClock, PythonGpu(), tmp_path)
    return cpp_rank(tmp_path, has_driver=request.param == "driver")


def test_no_context_is_opened_on_a_device_that_the_rank_does_not_use(rank: Rank) -> None:
    """The sampler's thread has device 0 as its current one; the rank may have any other."""
    marks = [rank.op(7, device=3), rank.op(7, device=2)]
    rank.clock.settle_aside()
    assert (rank.over, rank.gpu.contexts()) == (marks, {2, 3})


def test_a_stream_that_hangs_hides_no_other(rank: Rank) -> None:
    """Ops on other streams are completed; its own are completed when it continues."""
    first, second = rank.op(7, is_stuck=True), rank.op(8)
    rank.clock.settle_aside()
    assert rank.over == [second]
    rank.gpu.go_on(7)
    rank.clock.settle_aside()
    assert rank.over == [first, second]


def test_events_are_used_again(rank: Rank) -> None:
    """Two of the stream are enough for any number of ops, and one that is the base."""
    for _ in range(5):
        rank.op(7)
        rank.op(7)
        rank.clock.settle_aside()
        assert rank.over == rank.marks
    assert rank.gpu.counts()[0] == 3


def test_few_events_are_asked_for_many_ops(rank: Rank) -> None:
    """They complete in order: each question halves what is not known yet."""
    for number in range(1000):
        rank.op(7, is_stuck=number >= 600)
    rank.clock.settle_aside()
    assert rank.over == rank.marks[:600]
    assert rank.gpu.counts()[1] <= 10


def test_the_ops_of_a_stream_that_continues_complete_in_parts(rank: Rank) -> None:
    """Those that were pending before, and those that came meanwhile."""
    first, second = rank.op(7), rank.op(7, is_stuck=True)
    rank.clock.settle_aside()
    third = rank.op(7, is_stuck=True)
    rank.clock.settle_aside()
    assert rank.over == [first]
    rank.gpu.go_on(7)
    rank.clock.settle_aside()
    assert rank.over == [first, second, third]


def test_the_thread_relaxes_its_capture_mode_once(rank: Rank) -> None:
    """Not before there is something to ask: a program without a GPU has no CUDA to ask."""
    rank.clock.settle_aside()
    assert (rank.gpu.relaxed, rank.gpu.contexts(), rank.clock.needs_thread) == (0, set(), False)
    for _ in range(3):
        rank.op(7)
        rank.clock.settle_aside()
    assert (rank.gpu.relaxed, rank.over) == (1, rank.marks)


def test_a_thread_that_cannot_relax_asks_nothing(rank: Rank) -> None:
    """The next op and the end of the program settle then, in the program's own thread."""
    rank.gpu.can_relax = False
    rank.op(7, is_stuck=True)
    rank.clock.settle_aside()
    rank.clock.settle_aside()
    assert (rank.gpu.counts(), rank.clock.needs_thread) == ((1, 0), False)
    rank.op(7, is_stuck=True)
    assert rank.over == []
    rank.gpu.go_on(7)
    rank.op(7)
    assert rank.over == rank.marks


def test_nothing_is_asked_during_a_capture(rank: Rank) -> None:
    """An op that is captured is complete for the host at once; the others wait until the capture has ended."""
    rank.gpu.can_relax = False
    before = rank.op(7)
    rank.clock.settle_aside()
    rank.gpu.capture(True)
    captured = rank.op(9)
    rank.clock.settle()
    assert (rank.over, rank.gpu.counts()) == ([captured], (1, 0))
    rank.gpu.capture(False)
    rank.clock.settle()
    assert rank.over == [before, captured]


def test_an_op_is_late_if_its_gpu_comes_to_it_late(rank: Rank) -> None:
    """What the host has queued before keeps the GPU from it: the time is known when the stream has come so far."""
    rank.marks.append(rank.ring.add(OP["all_reduce"], group=1))
    rank.note(ARRIVED, 7, is_stuck=True)
    rank.clock.settle_aside()
    assert rank.time_ns(rank.marks[0], ARRIVED) == 0
    rank.gpu.go_on(7)
    rank.note(WAITED, 7, is_stuck=True)
    rank.note(COMPLETED, 7, is_stuck=True)
    rank.clock.settle_aside()
    assert [rank.time_ns(rank.marks[0], moment) > 0 for moment in TIMES] == [True, False, False]
    rank.gpu.go_on(7)
    rank.clock.settle_aside()
    assert all(rank.time_ns(rank.marks[0], moment) for moment in TIMES)


def test_an_op_that_is_captured_has_no_arrival(rank: Rank) -> None:
    """No event of ours may get into the graph."""
    rank.gpu.capture(True)
    rank.marks.append(rank.ring.add(OP["all_reduce"], group=1))
    rank.note(ARRIVED, 9)
    rank.note(WAITED, 9)
    assert (rank.time_ns(rank.marks[0], ARRIVED), rank.gpu.counts()) == (0, (0, 0))


def test_a_stream_that_hangs_fills_no_memory(rank: Rank) -> None:
    """Beyond a limit, no event is kept."""
    for _ in range(17_000):
        rank.op(7, is_stuck=True)
    assert rank.gpu.counts()[0] == 16384
    rank.gpu.go_on(7)
    rank.clock.settle_aside()
    assert rank.over == rank.marks[:16384]
    rank.op(7)
    rank.clock.settle_aside()
    assert rank.over == [*rank.marks[:16384], rank.marks[-1]]


def test_the_base_is_renewed(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    """The longer ago it was, the less exact are the times. Each op ends a millisecond after the base here."""
    monkeypatch.setattr(cuda_timing, "BASE_AGE_NS", 0)
    for _ in range(3):
        rank.op(7)
        rank.clock.settle_aside()
    first, second, third = (rank.time_ns(mark, COMPLETED) for mark in rank.over)
    assert first < second < third


@is_built
def test_an_event_is_recorded_by_the_driver_once_torch_has_made_it(tmp_path: Path) -> None:
    """The stand-in's driver refuses another stream than the current one."""
    rank = cpp_rank(tmp_path, has_driver=True)
    for _ in range(3):
        rank.op(7, device=2)
        rank.clock.settle_aside()
    assert (rank.over, rank.gpu.counts()[0]) == (rank.marks, 2)


@is_built
def test_where_the_driver_lacks_a_function_torch_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = cpp_rank(tmp_path, has_driver=True)
    monkeypatch.setattr(rank.gpu, "driver", lambda: loaded("libtorch_cpu"))
    for _ in range(2):
        rank.op(7)
        rank.clock.settle_aside()
    assert rank.over == rank.marks


def test_a_thread_that_has_not_used_the_gpu_yet_is_recorded(rank: Rank) -> None:
    """The driver knows no context there; what torch calls makes one."""
    rank.op(7)
    rank.clock.settle_aside()
    other = threading.Thread(target=rank.op, args=(7,))
    other.start()
    other.join()
    rank.clock.settle_aside()
    assert rank.over == rank.marks
    assert len(rank.marks) == 2


def test_a_library_is_found_where_the_process_has_it() -> None:
    """With its whole path, or not at all."""
    path = loaded("libtorch_cpu")
    assert path is not None
    assert Path(path).is_file()
    assert loaded("libno-such-library") is None
