"""The way to torch, shorter: a thread loads its libraries, which takes a fifth of a second, while Python imports what
needs none of them. Only where two cores are free does that save time; nowhere does it cost any.
"""

import _thread
import ctypes
import gc
import importlib
import importlib.util
import os
from pathlib import Path

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
_loading: list[_thread.LockType] = []  # locked until it is done
_chosen: list[bool] = []


def begin() -> None:
    """Returns when all has been imported that does not need torch's libraries. They may take a little longer."""
    # Nothing of what is imported is garbage.
    gc.disable()
    choose_threads()
    _import(_LIBRARIES)
    _import(("rollcall.launch.host.supervise",))
    _start_loading()
    _import(_MODULES)


def choose_threads() -> bool:
    """One thread per rank, as torchrun has it, or every rank takes every core: the libraries read the variable when
    they are loaded. Returns whether their number was ours to choose."""
    if not _chosen:
        _chosen.append("OMP_NUM_THREADS" not in os.environ)
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    return _chosen[0]


def import_torch() -> None:
    while _loading:
        _loading.pop().acquire()  # what forks must have no thread but its own
    import torch.distributed  # noqa: F401


def _import(names: tuple[str, ...]) -> None:
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:  # another Python's, another torch's: whoever needs it will say so
            continue


def _start_loading() -> None:
    found = importlib.util.find_spec("torch")
    for folder in found.submodule_search_locations or () if found is not None else ():
        # Not ctypes.CDLL, which holds on to the interpreter meanwhile.
        dlopen = ctypes.CDLL(None).dlopen
        dlopen.argtypes, dlopen.restype = (ctypes.c_char_p, ctypes.c_int), ctypes.c_void_p
        lock = _thread.allocate_lock()
        lock.acquire()
        _loading.append(lock)
        # Not a threading.Thread: those are counted, and the program's first would be its second.
        _thread.start_new_thread(_load, (dlopen, Path(folder, "lib"), lock))


def _load(dlopen: "ctypes._NamedFuncPointer", folder: Path, lock: _thread.LockType) -> None:
    """In torch's own order and way. Where one is missing, torch will load what it has itself."""
    dlopen(bytes(folder / "libtorch_global_deps.so"), os.RTLD_NOW | os.RTLD_GLOBAL)
    dlopen(bytes(folder / "libtorch.so"), os.RTLD_NOW)
    lock.release()
