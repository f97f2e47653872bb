"""Lets torch.profiler begin in a rank as it would in a fresh interpreter.

kineto, the library below torch.profiler, notes which thread has loaded it. If another thread begins to profile, it
writes an error to stderr, and leaves out the part that lets a daemon ask for profiles. An agent loads torch's libraries
in a thread of its own (agent/fast_import), and so the number of that thread is replaced by that of the main thread.
"""

import contextlib
import ctypes
import os
import threading

from rollcall.compat.patch import Patch

_LIBRARY = "libtorch_cpu.so"
_API = "_ZN9libkineto3apiEv"  # libkineto::api()
_FIELDS = 10  # numbers of 32 bits in the object that it returns

PATCH = Patch(
    name="kineto_thread",
    purpose="lets torch.profiler begin in a rank without an error",
    lost_without="torch.profiler writes an error to stderr of a rank, once",
    can_be_left_out=True,
    tried_on=("torch 2.13",),
    works=lambda: _works(),
)


def move_to_main(loader: int) -> None:
    """`loader` is the thread that has loaded torch's libraries. Nothing is changed where its number is not found."""
    fields = None if PATCH.is_off() else _fields()
    if fields is not None:
        noted = [place for place, value in enumerate(fields) if value == _number(loader)]
        if len(noted) == 1:
            fields[noted[0]] = _number(threading.main_thread().ident or 0)


def _works() -> str:
    import torch  # noqa: F401  (loads the library)

    return "" if _fields() is not None else "there is no libkineto::api()"


def _number(thread: int) -> int:
    """Returns the number of the thread as kineto notes it."""
    return ctypes.c_int32(thread & 0xFFFFFFFF).value


def _fields() -> "ctypes.Array[ctypes.c_int32] | None":
    with contextlib.suppress(OSError, AttributeError):
        api = getattr(ctypes.CDLL(_LIBRARY, mode=os.RTLD_NOLOAD | os.RTLD_NOW), _API)
        api.restype = ctypes.c_void_p
        return (ctypes.c_int32 * _FIELDS).from_address(api())
    return None
