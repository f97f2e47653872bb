"""Has the main thread do something between two of its instructions, as Python itself does with signal handlers."""

import ctypes
import sys
import threading
from collections.abc import Callable
from types import FrameType

_kept: list[object] = []  # what C may still call


class PendingCall:
    """Calls `do` in the main thread, with the frame that it interrupts; not while that thread is in C++."""

    def __init__(self, do: Callable[[FrameType | None], None]) -> None:
        self._do = do
        self._lock, self._has_begun, self._is_late = threading.Lock(), threading.Event(), False
        call = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._call)
        _kept.append(call)
        ctypes.pythonapi.Py_AddPendingCall(call, None)

    def has_begun(self, timeout_s: float) -> bool:
        """Whether the call begins within this time; if not, it is cancelled."""
        if self._has_begun.wait(timeout_s):
            return True
        with self._lock:
            self._is_late = not self._has_begun.is_set()
            return not self._is_late

    def _call(self, _argument: object) -> int:
        with self._lock:
            if self._is_late:
                return 0
            self._has_begun.set()
        self._do(sys._getframe().f_back)
        return 0
