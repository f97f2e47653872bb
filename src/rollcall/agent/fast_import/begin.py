"""Loads torch's libraries in a thread, which takes 0.2 s. Meanwhile Python imports modules that do not need them, and
reads the code of those that do. This saves time if two cores are free, and costs no time otherwise.

All ranks wait for this thread, so this file imports almost nothing, not even typing, before the thread has started.
"""

import _thread
import ctypes
import gc
import os
from importlib import import_module
from importlib.machinery import PathFinder

# While one thread loads a library, no other can: modules that are libraries themselves come first.
_LIBRARIES = (
    "_socket", "_struct", "_json", "_opcode", "_posixsubprocess", "_typing", "array", "fcntl", "math", "select",
    "_blake2", "_hashlib", "_bisect", "_bz2", "_csv", "_datetime", "_lzma", "_random", "_sha512", "binascii", "zlib",
    "_contextvars", "_heapq", "_ssl", "_pickle", "grp", "_queue", "_multiprocessing", "mmap",
)  # fmt: skip
# Modules of others that torch imports, and the agent's own.
_MODULES = (
    "rollcall.agent.main", "rollcall.agent.fast_import.torch_import", "torchgen.model", "importlib.metadata",
    "unittest", "ssl", "multiprocessing.pool", "urllib.request", "pickletools", "tarfile", "concurrent.futures.thread",
    "platform",
)  # fmt: skip
# Folders of torch and numpy all of whose modules, or nearly, are imported with them; the biggest first.
_FOLDERS = (
    "torch", "torch/nn/modules", "torch/_higher_order_ops", "torch/optim", "torch/fx", "torch/autograd",
    "torch/_subclasses", "torch/distributions", "torch/nn", "torch/jit", "torch/cuda", "torch/_refs", "torch/_decomp",
    "torch/_library", "torch/nn/parallel", "torch/nn/utils", "torch/fx/passes", "torch/distributed", "torch/utils",
    "torch/_prims", "torch/package", "numpy/_core", "numpy/lib", "numpy", "torch/ao/quantization", "numpy/_typing",
    "torch/ao/nn/quantized/modules", "torch/utils/data", "torch/distributed/rpc", "torch/masked/maskedtensor",
    "torch/utils/data/datapipes/iter", "torch/_native", "torch/xpu", "torch/quantization", "torch/utils/data/_utils",
)  # fmt: skip
_chosen: list[bool] = []
_loader: list[int] = []  # the thread that has loaded torch's libraries


def begin() -> None:
    """Returns when torch's libraries are loaded."""
    # Imports leave no garbage: collecting it would only take time.
    gc.disable()
    choose_threads()
    _import(_LIBRARIES)
    torch = _find_torch()
    if torch is None:
        return  # importing it will say so
    lock = _start_loading(os.path.join(torch, "lib"))
    _import(_MODULES)
    from rollcall.agent.fast_import import code_cache

    code_cache.read(os.path.dirname(torch), _FOLDERS, lock.locked)
    lock.acquire()  # a process that forks must have no second thread


def choose_threads() -> bool:
    """One thread per rank, as torchrun has it, or every rank takes every core: the libraries read the variable when
    they are loaded. Returns whether their number was ours to choose."""
    if not _chosen:
        _chosen.append("OMP_NUM_THREADS" not in os.environ)
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    return _chosen[0]


def import_torch() -> None:
    from rollcall.agent.fast_import import code_cache, torch_import

    with code_cache.used(), torch_import.inspecting(), torch_import.making_dataclasses():
        import torch.distributed  # noqa: F401
    from rollcall.compat import kineto_thread

    for thread in _loader:
        kineto_thread.move_to_main(thread)


def _import(names: tuple[str, ...]) -> None:
    for name in names:
        try:
            import_module(name)
        except ImportError:  # another Python or torch has no such module, and does not need it
            continue


def _find_torch() -> str | None:
    found = PathFinder.find_spec("torch")
    return None if found is None or found.origin is None else os.path.dirname(found.origin)


def _start_loading(folder: str) -> _thread.LockType:
    """Returns a lock that is released when it is done."""
    # Not ctypes.CDLL, which holds on to the interpreter meanwhile.
    dlopen = ctypes.CDLL(None).dlopen
    dlopen.argtypes, dlopen.restype = (ctypes.c_char_p, ctypes.c_int), ctypes.c_void_p
    lock = _thread.allocate_lock()
    lock.acquire()
    # Not a threading.Thread: those are counted, and the program's first would be its second.
    _loader.append(_thread.start_new_thread(_load, (dlopen, folder, lock)))
    return lock


def _load(dlopen: "ctypes._NamedFuncPointer", folder: str, lock: _thread.LockType) -> None:
    """Loads the libraries in the order in which torch does. If one is missing, torch loads the others itself."""
    dlopen(os.fsencode(os.path.join(folder, "libtorch_global_deps.so")), os.RTLD_NOW | os.RTLD_GLOBAL)
    dlopen(os.fsencode(os.path.join(folder, "libtorch.so")), os.RTLD_NOW)
    lock.release()
