"""When a GPU came to its ops and completed them. The host only queues them; CUDA events are queried later, so that the
program does not wait."""

import _thread
import ctypes
from collections import deque
from contextlib import AbstractContextManager
from pathlib import Path
from time import monotonic_ns
from typing import Any

import torch

from rollcall.record import ring_format
from rollcall.record.ring import Ring

_MOST_PENDING = 16384  # per stream: a stream that hangs must not fill the memory; back to back, 0.1 s has 4,000 ops
# CUDA tells the time between two events as a float of milliseconds: after ten seconds it is exact to a microsecond,
# after five hours to two milliseconds.
BASE_AGE_NS = 10_000_000_000
_RENEW_NS = 1_000_000
_RELAXED = 2  # cudaStreamCaptureModeRelaxed

# The moments of an op: its GPU has reached it, has reached the point where it is waited for, has completed it. Before
# that, the GPU may be busy with what the host has queued earlier.
ARRIVED, WAITED, COMPLETED = range(3)
_FIELDS = (ring_format.ISSUED_AT, ring_format.WAITED_AT, ring_format.COMPLETED_AT)


# What torch.cuda itself calls, which takes a tenth of the time. A torch without CUDA has neither.
_get_device = getattr(torch._C, "_cuda_getDevice", None)
_get_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)


class CudaEvents:
    """All calls to CUDA of the clock."""

    def __init__(self) -> None:
        self._streams: dict[tuple[int, int], Any] = {}  # by device and handle

    def is_capturing(self) -> bool:
        return bool(torch.cuda.is_current_stream_capturing())

    def current_stream(self) -> Any:
        """The same object for the same stream: torch makes a new one each time, which takes longer than an event."""
        if _get_device is None or _get_raw_stream is None:
            return torch.cuda.current_stream()
        device = _get_device()
        key = device, _get_raw_stream(device)
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = torch.cuda.current_stream()
        return stream

    def new_stream(self) -> Any:
        """Makes one of high priority: torch.cuda.graph captures on one of the other 32, and no event of ours may get
        into a graph."""
        return torch.cuda.Stream(priority=-1)  # type: ignore[no-untyped-call]

    def new_event(self) -> Any:
        return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def on(self, device: int) -> AbstractContextManager[Any]:
        """Makes this device current: a query while another device is current would open a context on that one."""
        return torch.cuda.device(device)

    def driver(self) -> str | None:
        """The library of CUDA's driver that torch has loaded."""
        return None if _get_raw_stream is None else loaded("libcuda.so")

    def stream_handle(self, device: int) -> int | None:
        """The driver's handle of the current stream of a device."""
        return None if _get_raw_stream is None else int(_get_raw_stream(device))

    def relax_capture(self) -> bool:
        """Let this thread query events while another one captures a CUDA graph, as nccl's watchdog does. Otherwise a
        query invalidates the capture. False where that is not possible."""
        path = loaded("libcudart")
        if path is None:
            return False
        mode = ctypes.c_int(_RELAXED)
        try:
            return bool(ctypes.CDLL(path).cudaThreadExchangeStreamCaptureMode(ctypes.byref(mode)) == 0)
        except (OSError, AttributeError):
            return False


def loaded(library: str) -> str | None:
    """The file of a library that this process has loaded."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        _, _, path = line.partition("/")
        if path.rpartition("/")[2].startswith(library):
            return "/" + path
    return None


class _Queue:
    """Ops that are under way on one stream, and events to reuse: creating one takes longer than recording it."""

    def __init__(self) -> None:
        self.pending: deque[tuple[tuple[int, ...], int, Any]] = deque()  # marks, moment, event
        self.free: list[Any] = []


class DeviceClock:
    """Turns events of the current stream into times of the host's clock. cpp/device_clock.h does the same, with a few
    methods of this class."""

    def __init__(self, ring: Ring, cuda: CudaEvents | None = None) -> None:
        self._ring, self._cuda = ring, cuda or CudaEvents()
        # By device and stream: a stream that hangs does not delay the others.
        self._queues: dict[tuple[int, int], _Queue] = {}
        self._bases: dict[int, tuple[Any, int]] = {}  # by device: an event, and when it was, in nanoseconds
        self._base_streams: dict[int, Any] = {}  # of their own, so that waiting for an event waits for nothing else
        self._can_query_aside: bool | None = None  # None: the sampler's thread has not tried yet
        self._settling = _thread.allocate_lock()

    def first_device(self) -> int:
        """The one that was used first; -1 if none has been."""
        return next(iter(self._queues))[0] if self._queues else -1

    def note(self, marks: tuple[int, ...], moment: int) -> None:
        """Record an event: it completes when the current stream reaches this moment of these ops."""
        if self._cuda.is_capturing():  # nothing runs now; the graph runs when it is replayed
            if moment == COMPLETED:
                self._set_times(marks, moment, monotonic_ns())
            return
        stream = self._cuda.current_stream()
        queue = self._queues.setdefault((stream.device_index, stream.cuda_stream), _Queue())
        if len(queue.pending) < _MOST_PENDING:
            event = queue.free.pop() if queue.free else self._cuda.new_event()
            event.record(stream)
            queue.pending.append((marks, moment, event))
        if self._can_query_aside is False:
            self._settle()

    @property
    def needs_thread(self) -> bool:
        """Whether the sampler's thread must call `settle_aside`."""
        return self._can_query_aside is not False and self.first_device() >= 0

    def settle_aside(self) -> None:
        """Record the times of events that are over. Called by the sampler's thread, even while the program captures a
        graph."""
        if self._can_query_aside is None and (device := self.first_device()) >= 0:
            with self._cuda.on(device):
                self._can_query_aside = self._cuda.relax_capture()
            if not self._can_query_aside:
                self._settle_in_notes()
        if self._can_query_aside:
            self._settle()

    def settle(self) -> None:
        """The same, called by the program's own thread."""
        if self.first_device() >= 0 and not self._cuda.is_capturing():
            self._settle()

    def _settle_in_notes(self) -> None:
        """`note` sees that no other thread does it."""

    def _settle(self) -> None:
        if self._settling.acquire(blocking=False):
            try:
                for (device, _), queue in list(self._queues.items()):
                    if queue.pending:
                        self._settle_queue(device, queue)
            finally:
                self._settling.release()

    def _settle_queue(self, device: int, queue: _Queue) -> None:
        with self._cuda.on(device):
            over = _count_over(queue.pending)
            if not over:
                return
            base, base_ns = self._bases.get(device) or self._begin(device)
            for _ in range(over):
                marks, moment, event = queue.pending.popleft()
                self._set_times(marks, moment, base_ns + int(base.elapsed_time(event) * 1e6))
                queue.free.append(event)
            if monotonic_ns() - base_ns >= BASE_AGE_NS:
                self._renew(device)

    def _set_times(self, marks: tuple[int, ...], moment: int, at_ns: int) -> None:
        for mark in marks:
            self._ring.set_time(mark, _FIELDS[moment], at_ns)

    def _begin(self, device: int) -> tuple[Any, int]:
        self._base_streams[device] = self._cuda.new_stream()
        base = self._new_base(device)
        base.synchronize()
        self._bases[device] = base, monotonic_ns()
        return self._bases[device]

    def _renew(self, device: int) -> None:
        """Does not wait for a GPU that hangs: the old base is kept then."""
        base, until_ns = self._new_base(device), monotonic_ns() + _RENEW_NS
        while monotonic_ns() < until_ns:
            if base.query():
                self._bases[device] = base, monotonic_ns()
                return

    def _new_base(self, device: int) -> Any:
        base = self._cuda.new_event()
        base.record(self._base_streams[device])
        return base


def _count_over(pending: deque[tuple[tuple[int, ...], int, Any]]) -> int:
    """How many events have completed. Those of one stream complete in order, so that a few questions are enough: the
    thread that asks takes the GIL from the program."""
    low, high = 0, len(pending)
    while low < high:
        middle = (low + high) // 2
        if pending[middle][2].query():
            low = middle + 1
        else:
            high = middle
    return low
