"""The way to torch, shorter: a thread loads its libraries, which takes a fifth of a second, while Python imports what
needs none of them, and reads the code of what does. Only where two cores are free does that save time; nowhere does it
cost any.
"""

import _thread
import contextlib
import ctypes
import functools
import gc
import importlib
import importlib.util
import inspect
import os
from collections.abc import Iterator
from pathlib import Path

from rollcall.launch.host import codes

# While one thread loads a library, no other can: modules that are libraries themselves come first.
_LIBRARIES = (
    "_socket", "_struct", "_json", "_opcode", "_posixsubprocess", "_typing", "array", "fcntl", "math", "select",
    "_blake2", "_hashlib", "_bisect", "_bz2", "_csv", "_datetime", "_lzma", "_random", "_sha512", "binascii", "zlib",
    "_asyncio", "_contextvars", "_heapq", "_ssl", "_pickle", "grp", "_queue", "_multiprocessing",
)  # fmt: skip
# What torch imports of others, and the agent's own.
_MODULES = (
    "rollcall.launch.host.agent", "torchgen.model", "importlib.metadata", "unittest.mock", "multiprocessing.pool",
    "urllib.request", "pickletools", "tarfile", "concurrent.futures.thread", "platform",
)  # fmt: skip
# Folders of torch all of whose modules, or nearly, are imported with it; the biggest first.
_FOLDERS = (
    "", "nn/modules", "_higher_order_ops", "optim", "fx", "autograd", "_subclasses", "distributions", "nn", "jit",
    "cuda", "_refs", "_decomp", "_library", "nn/parallel", "nn/utils", "fx/passes", "distributed", "utils", "_prims",
    "package",
)  # fmt: skip
_chosen: list[bool] = []


def begin() -> None:
    """Returns when torch's libraries are there, and what could be done meanwhile has been."""
    # Nothing of what is imported is garbage.
    gc.disable()
    choose_threads()
    _import(_LIBRARIES)
    _import(("rollcall.launch.host.supervise",))
    torch = _find_torch()
    if torch is None:
        return  # whoever imports it will say so
    lock = _start_loading(torch / "lib")
    _import(_MODULES)
    codes.read(torch, _FOLDERS, lock.locked)
    lock.acquire()  # what forks must have no thread but its own


def choose_threads() -> bool:
    """One thread per rank, as torchrun has it, or every rank takes every core: the libraries read the variable when
    they are loaded. Returns whether their number was ours to choose."""
    if not _chosen:
        _chosen.append("OMP_NUM_THREADS" not in os.environ)
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    return _chosen[0]


def import_torch() -> None:
    with codes.used(), _no_context():
        import torch.distributed  # noqa: F401


@contextlib.contextmanager
def _no_context() -> Iterator[None]:
    """torch notes the file and line of each op that it registers. The text of that line, which inspect looks for
    besides, takes a millisecond, and nobody reads it."""
    original = inspect.getframeinfo
    inspect.getframeinfo = functools.partial(original, context=0)
    try:
        yield
    finally:
        inspect.getframeinfo = original


def _import(names: tuple[str, ...]) -> None:
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:  # another Python's, another torch's: whoever needs it will say so
            continue


def _find_torch() -> Path | None:
    found = importlib.util.find_spec("torch")
    return None if found is None or found.origin is None else Path(found.origin).parent


def _start_loading(folder: Path) -> _thread.LockType:
    """Returns a lock that is released when it is done."""
    # Not ctypes.CDLL, which holds on to the interpreter meanwhile.
    dlopen = ctypes.CDLL(None).dlopen
    dlopen.argtypes, dlopen.restype = (ctypes.c_char_p, ctypes.c_int), ctypes.c_void_p
    lock = _thread.allocate_lock()
    lock.acquire()
    # Not a threading.Thread: those are counted, and the program's first would be its second.
    _thread.start_new_thread(_load, (dlopen, folder, lock))
    return lock


def _load(dlopen: "ctypes._NamedFuncPointer", folder: Path, lock: _thread.LockType) -> None:
    """In torch's own order and way. Where one is missing, torch will load what it has itself."""
    dlopen(bytes(folder / "libtorch_global_deps.so"), os.RTLD_NOW | os.RTLD_GLOBAL)
    dlopen(bytes(folder / "libtorch.so"), os.RTLD_NOW)
    lock.release()
