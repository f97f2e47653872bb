"""Samples where a rank is when it is in no op: it may compute, load data or sleep. Writes its stacks on request.

A program that communicates all the time is not sampled, and a rank that stays on one line adds one record.
"""

import _thread
import atexit
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from threading import RLock, get_ident
from time import monotonic
from types import FrameType

from rollcall.record import ring_format, sites
from rollcall.record.cuda_timing import DeviceClock
from rollcall.record.hooks.patching import stop
from rollcall.record.on_request import stacks
from rollcall.record.on_request.requests import Requests
from rollcall.record.ring import Ring

_SHORT_S = 0.02
_DEVICE_S = 0.1  # between two looks at the events of a GPU
# A sample costs the program 0.2 ms, for its caches and the GIL. So there is a budget to begin with, and then four
# samples a second, which is less than a tenth of a percent: explain needs the shares of lines, not each stay.
_MOST_SAMPLES = 100.0
_SAMPLES_PER_S = 4.0
_IDLE_NS = 10_000_000  # shorter stays are not sampled
_BEGIN_S = 1.0
_END_S = 10.0  # it ends at once, unless the machine is very busy or a GPU does not answer
_MOST_ERRORS = 1000  # whose names are written: a program that handles more lives with them


class Sampler:
    """Samples the main thread from a thread of its own, and writes to the ring under the recorder's lock."""

    def __init__(
        self,
        ring: Ring,
        lock: "RLock",
        main: int,
        site_number: Callable[[sites.Places], int],
        is_blocked: Callable[[], bool],
        device: DeviceClock,
        requests: Requests,
    ) -> None:
        self._ring, self._lock, self._main = ring, lock, main
        self._site_number, self._is_blocked, self._device = site_number, is_blocked, device
        self._is_on, self._process = True, os.getpid()
        self._begun, self._ended = _thread.allocate_lock(), _thread.allocate_lock()
        self._budget = _MOST_SAMPLES  # samples that are left
        self._asked, self._requests = ring.asked(), requests
        self._handled_in, self._errors_left = 0, _MOST_ERRORS
        self._newest: tuple[int, tuple[int, int]] = (0, (0, 0))  # the mark of the newest sample, its site and flags

    def start(self) -> None:
        """Returns when the thread has begun, or a busy machine takes too long: the program may keep Python's lock from
        now on, and only a thread that has begun is seen to wait for that."""
        self._begun.acquire()
        self._ended.acquire()
        # The signals of the program are not this thread's: where the program blocks one, to wait for it, this thread
        # would get it instead, and the process might die of it. A thread begins with the mask of its parent.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            run = self._run(get_ident())
            next(run)
            # Not a threading.Thread: the program may count those.
            _thread.start_new_thread(next, (run, None))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self._begun.acquire(timeout=_BEGIN_S)
        atexit.register(self.stop)  # at its end, Python kills threads that are in C++, which may abort the process

    def stop(self) -> None:
        """Returns when the thread has ended. A forked process does not have it."""
        self._is_on = False
        if self._process == os.getpid() and self._ended.locked():
            self._ring.wake()
            if self._ended.acquire(timeout=_END_S):
                self._ended.release()

    def end(self) -> None:
        """No more samples from now on. Does not wait for the thread, which may need a lock of the caller."""
        self._is_on = False

    def _run(self, starter: int) -> Generator[None, None, None]:
        """A generator, so that the thread begins inside of the `try`. Until it runs, Python 3.11 gives it the id of the
        thread that starts it: what another thread of the program throws into that one just then arrives here."""
        try:
            yield
        except BaseException as error:
            _throw(error, starter)
        try:
            _name_thread()
            self._begun.release()
            while self._is_on:
                self._sleep()
                self._device.settle_aside()
                self._answer()
                self._note_handled()
                self._sample()
        except Exception as error:
            stop("the sampler", error)
        finally:
            self._ended.release()

    def _sleep(self) -> None:
        # Where a GPU is used, its events are asked after each interval, whether there is something to sample or not.
        is_used = self._device.needs_thread
        began = monotonic()
        until_next_s = max(_SHORT_S, (1 - self._budget) / _SAMPLES_PER_S)
        self._ring.sleep(_DEVICE_S if is_used else until_next_s, _IDLE_NS, is_brief=is_used)
        self._budget = min(_MOST_SAMPLES, self._budget + (monotonic() - began) * _SAMPLES_PER_S)

    def _answer(self) -> None:
        """Does what is asked for in the ring: stacks, and everything else. Also notes there whether the program handles
        the signal for stacks itself."""
        self._ring.note_signal(stacks.is_programs())
        asked = self._ring.asked()
        if asked != self._asked:
            is_for_stacks = asked - self._asked > self._requests.begin_new()
            self._asked = asked
            if is_for_stacks:
                stacks.write(self._main)

    def _note_handled(self) -> None:
        """If the main thread waits in an op while it handles an error, as in a `finally`: name the error. The op and
        the program do not end, so nobody else would."""
        count = self._ring.count
        if count == self._handled_in or not self._is_blocked():
            return
        self._handled_in = count  # asked once per op
        found = sys._current_exceptions().get(self._main)
        error = found[1] if isinstance(found, tuple) else found  # before Python 3.12: type, value and traceback
        if error is not None and self._errors_left:
            self._errors_left -= 1
            value = describe_error(error) | {"op": count, "site": self._site_number(sites.raised(error.__traceback__))}
            self._ring.name("handled", count, value)

    def _sample(self) -> None:
        with self._lock:
            if self._budget < 1 or self._is_blocked() or not self._is_on or self._ring.idle_ns() < _IDLE_NS:
                return
            frame = sys._current_frames().get(self._main)
            if frame is not None:
                self._budget -= 1
                self._write(frame)

    def _write(self, frame: FrameType) -> None:
        flags = _flags(list(_frames(frame)))
        site = self._site_number(sites.user_frames(frame))
        mark, sampled = self._newest
        if sampled == (site, flags) and self._ring.newest() == (self._ring.count, mark):
            self._ring.completed(mark)  # still on the same line
            return
        mark = self._ring.add(ring_format.OP["sample"], flags, site=site)
        self._ring.completed(mark)
        self._newest = mark, (site, flags)


def _flags(frames: list[tuple[str, str]]) -> int:
    if not sites.waits_for_data(frames):
        return 0
    return ring_format.INPUT | (ring_format.ELSEWHERE if sites.is_made_elsewhere(frames) else 0)


def describe_error(error: BaseException) -> dict[str, object]:
    return {"error": type(error).__name__, "text": str(error)[:_MOST_TEXT]}


_MOST_TEXT = 500  # of the message of an error


def _throw(error: BaseException, thread: int) -> None:
    """Python makes a new error of the same class there."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(type(error)))


def _name_thread() -> None:
    """The agent can then tell this thread from those of the program. Python names threads of its own only from 3.14."""
    with contextlib.suppress(OSError), open("/proc/thread-self/comm", "w") as file:
        file.write(ring_format.SAMPLER_THREAD)


def _frames(frame: FrameType | None) -> Iterator[tuple[str, str]]:
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_code.co_name
        frame = frame.f_back
