"""Where a rank is when it is in no op: it may compute, load its data, sleep. A thread looks now and then.

A program that communicates all the time is not looked at, and a rank that stays on one line adds one record.
"""

import _thread
import atexit
import sys
from collections.abc import Callable, Iterator
from threading import RLock
from time import monotonic
from types import FrameType

from rollcall.record import ring_format, sites
from rollcall.record.cuda_timing import DeviceClock
from rollcall.record.ring import Ring

_EVERY_S = 0.02
# A look takes the program 0.2 ms: its caches, and the interpreter's lock. So there are some to begin with, and then ten
# in a second, which is a fifth of a percent.
_SELDOM_S = 0.1
_MOST_LOOKS = 100.0
_LOOKS_PER_S = 1 / _SELDOM_S
_IDLE_NS = 10_000_000  # less is no time to be anywhere
_END_S = 1.0


class Sampler:
    """Looks at the main thread, and writes to its ring under its lock."""

    def __init__(
        self,
        ring: Ring,
        lock: "RLock",
        main: int,
        number: Callable[[sites.Places], int],
        is_in_op: Callable[[], bool],
        device: DeviceClock,
    ) -> None:
        self._ring, self._lock, self._main = ring, lock, main
        self._number, self._is_in_op, self._device = number, is_in_op, device
        self._is_on = True
        self._end = _thread.allocate_lock()
        self._looks = _MOST_LOOKS  # that are left
        self._sample: tuple[int, tuple[int, int]] = (0, (0, 0))  # the newest sample, and what it is of

    def start(self) -> None:
        self._end.acquire()
        # Not a threading.Thread: the program may count those.
        _thread.start_new_thread(self._look_on, ())
        atexit.register(self.stop)  # Python ends threads that are left in the middle of C++, and C++ does not like that

    def stop(self) -> None:
        """Returns when the thread looks no more."""
        if self._is_on:
            self._is_on = False
            self._ring.wake()
            self._end.acquire(timeout=_END_S)

    def _look_on(self) -> None:
        try:
            while self._is_on:
                self._rest()
                self._device.settle_aside()
                self._look()
        except Exception:  # its disk is full: nobody needs samples then
            self._is_on = False
        finally:
            self._end.release()

    def _rest(self) -> None:
        # A device that is used is settled after each rest, whether there is something to look at or not.
        is_used = self._device.needs_thread
        began = monotonic()
        self._ring.rest(_SELDOM_S if is_used or self._looks < 1 else _EVERY_S, _IDLE_NS, is_brief=is_used)
        self._looks = min(_MOST_LOOKS, self._looks + (monotonic() - began) * _LOOKS_PER_S)

    def _look(self) -> None:
        with self._lock:
            if self._is_in_op() or not self._is_on or self._ring.idle_ns() < _IDLE_NS:
                return
            frame = sys._current_frames().get(self._main)
            if frame is not None:
                self._looks -= 1
                self._write(frame)

    def _write(self, frame: FrameType) -> None:
        flags = ring_format.INPUT if sites.waits_for_data(_files(frame)) else 0
        site = self._number(sites.chain(frame))
        at, of = self._sample
        if of == (site, flags) and self._ring.newest() == (self._ring.count, at):
            self._ring.completed(at)  # it is still there
            return
        at = self._ring.add(ring_format.OP["sample"], flags, site=site)
        self._ring.completed(at)
        self._sample = at, (site, flags)


def _files(frame: FrameType | None) -> Iterator[str]:
    while frame is not None:
        yield frame.f_code.co_filename
        frame = frame.f_back
