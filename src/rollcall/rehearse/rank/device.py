"""A pretended CUDA device: the library for torch's C++, and the functions of torch.cuda for the script."""

import contextlib
import ctypes
import itertools
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rollcall.rehearse.settings import Gpu


class _NoLibrary:
    """Stands in for the library in a real rank on the CPU: knows only the number of the current device."""

    def __init__(self) -> None:
        self._device = 0

    def rollcall_current_device(self) -> int:
        return self._device

    def rollcall_set_device(self, device: int) -> None:
        self._device = device

    def rollcall_set_device_count(self, count: int) -> None: ...


_library: Any = _NoLibrary()


def load(path: Path) -> None:
    """Before torch is imported: torch then finds our hooks for CUDA when it looks for some."""
    global _library
    _library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def after_import() -> None:
    """Call this after torch is imported: a torch that is built for CUDA has registered its own guard."""
    _library.rollcall_pretend_again()


def current() -> int:
    return int(_library.rollcall_current_device())


def choose(device: Any) -> None:
    index = index_of(device)
    if index >= 0:
        _library.rollcall_set_device(index)


def index_of(device: Any) -> int:
    import torch  # here: this module is imported before torch

    if device is None:
        return current()
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return current() if index is None else int(index)


class Stream:
    """All work is done as soon as it is queued, since there is none. Memory belongs to the stream that made it."""

    def __init__(self, device: Any = None, priority: int = 0, number: int | None = None, **_: Any) -> None:
        import torch

        self.device = torch.device("cuda", index_of(device))
        self.device_index, self.device_type, self.priority = self.device.index, 1, priority
        self.stream_id = self.cuda_stream = next(_stream_numbers) if number is None else number
        self._left: list[Stream | None] = []  # the streams that were current when this one was entered

    def wait_stream(self, _: Any) -> None: ...

    def wait_event(self, _: Any) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def record_event(self, event: Any = None) -> Any:
        return event or Event()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and (self.device, self.stream_id) == (other.device, other.stream_id)

    def __hash__(self) -> int:
        return hash((self.device, self.stream_id))

    def __enter__(self) -> "Stream":
        self._left.append(_current_streams.get(self.device_index))
        set_stream(self)
        return self

    def __exit__(self, *_: Any) -> None:
        _current_streams[self.device_index] = self._left.pop()


_stream_numbers = itertools.count(1)
_current_streams: dict[int, Stream | None] = {}  # by device; none: the default stream


def set_stream(stream: Stream | None) -> None:
    if stream is not None:
        _current_streams[stream.device_index] = stream


def default_stream(device: Any = None) -> Stream:
    return Stream(device, number=0)


def current_stream(device: Any = None) -> Stream:
    return _current_streams.get(index_of(device)) or default_stream(device)


def current_stream_number() -> int:
    stream = _current_streams.get(current())
    return stream.stream_id if stream else 0


@contextlib.contextmanager
def _on_stream(stream: Stream | None) -> Iterator[None]:
    if stream is None:
        yield
        return
    with stream:
        yield


class Event:
    def __init__(self, *_: Any, **__: Any) -> None:
        self.at_s = time.perf_counter()
        self.cuda_event = 0

    def record(self, stream: Any = None) -> None:
        self.at_s = time.perf_counter()

    def wait(self, stream: Any = None) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, later: "Event") -> float:
        """Returns milliseconds. Programs divide by it, so it is never zero."""
        return max((later.at_s - self.at_s) * 1e3, 1e-3)


@contextlib.contextmanager
def _on(device: Any) -> Iterator[None]:
    before = current()
    choose(device)
    try:
        yield
    finally:
        choose(before)


def _nothing(*_: Any, **__: Any) -> None: ...


def _functions(gpu: Gpu, count: int) -> dict[str, Any]:
    """By name in torch.cuda: what a script may call before or beside its computation."""
    import torch

    total = gpu.capacity_bytes
    properties = SimpleNamespace(
        name=gpu.name,
        total_memory=total,
        major=gpu.capability[0],
        minor=gpu.capability[1],
        multi_processor_count=gpu.processors,
        warp_size=32,
        max_threads_per_multi_processor=2048,
        regs_per_multiprocessor=65536,
        gcnArchName="",
    )
    nothing = (
        "init",
        "_lazy_init",
        "synchronize",
        "empty_cache",
        "ipc_collect",
        "reset_peak_memory_stats",
        *("manual_seed", "manual_seed_all", "seed", "seed_all", "set_rng_state", "set_rng_state_all"),
        *("reset_max_memory_allocated", "reset_accumulated_memory_stats", "set_per_process_memory_fraction"),
        *("_record_memory_history", "_dump_snapshot", "set_sync_debug_mode"),
    )
    zero = (
        *("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "get_sync_debug_mode"),
        *("utilization", "temperature", "power_draw", "clock_rate", "memory_usage", "device_memory_used"),
    )
    return {
        **dict.fromkeys(nothing, _nothing),
        **dict.fromkeys(zero, lambda *_, **__: 0),
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_is_compiled": lambda: True,
        "is_bf16_supported": lambda *_, **__: gpu.capability >= (8, 0),
        "is_current_stream_capturing": lambda: False,
        "device_count": lambda: count,
        "current_device": current,
        "set_device": choose,
        "device": _on,
        "device_of": lambda tensor: _on(tensor.device if tensor.is_cuda else None),
        "can_device_access_peer": lambda *_: True,
        "get_arch_list": lambda: [f"sm_{gpu.capability[0]}{gpu.capability[1]}"],
        "get_gencode_flags": lambda: "",
        "Stream": Stream,
        "ExternalStream": lambda number, device=None, **_: Stream(device, number=number),
        "Event": Event,
        "current_stream": current_stream,
        "default_stream": default_stream,
        "set_stream": set_stream,
        "stream": _on_stream,
        "get_device_properties": lambda device=None: properties,
        "get_device_name": lambda device=None: gpu.name,
        "get_device_capability": lambda device=None: gpu.capability,
        "mem_get_info": lambda device=None: (total, total),
        "memory_stats": lambda device=None: defaultdict(int),
        "memory_summary": lambda *_, **__: "",
        "memory_snapshot": lambda *_, **__: [],
        "list_gpu_processes": lambda device=None: "",
        "get_rng_state": lambda device=None: torch.zeros(16, dtype=torch.uint8, device="cpu"),
        "get_rng_state_all": lambda: [torch.zeros(16, dtype=torch.uint8, device="cpu")] * count,
    }


def _accelerator_functions(count: int) -> dict[str, Any]:
    """By name in torch.accelerator, which asks the CUDA of the wheel. Optimizers of torch 2.15 use it."""
    import torch

    return {
        "is_available": lambda: True,
        "device_count": lambda: count,
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        **dict.fromkeys(("current_device_index", "current_device_idx"), current),
        **dict.fromkeys(("set_device_index", "set_device_idx"), choose),
        "device_index": _on,
        "current_stream": current_stream,
        "set_stream": set_stream,
        "synchronize": _nothing,
    }


def install(gpu: Gpu, count: int) -> None:
    """From now on, torch.cuda reports this number of GPUs."""
    import torch

    _library.rollcall_set_device_count(count)
    for name, function in _functions(gpu, count).items():
        setattr(torch.cuda, name, function)
    for module in ("random", "memory", "streams"):
        for name, function in _functions(gpu, count).items():
            if hasattr(getattr(torch.cuda, module, None), name):
                setattr(getattr(torch.cuda, module), name, function)
    for name, function in _accelerator_functions(count).items():
        setattr(torch.accelerator, name, function)
    # Recurrent layers ask whether cuDNN wants their weights in one piece, which a CUDA wheel asks the card's library.
    setattr(torch.backends.cudnn, "is_acceptable", lambda tensor: False)  # noqa: B010  (typing: a replaced function)
    for name in ("preferred_linalg_library", "preferred_blas_library"):
        setattr(torch.backends.cuda, name, _nothing)
    torch.cuda.profiler.start = torch.cuda.profiler.stop = _nothing
    torch._C._cuda_isCurrentStreamCapturing = lambda: False  # type: ignore[attr-defined,unused-ignore]
    _tell_versions(torch)


# A torch without CUDA has none. Programs print them, and DDP asks for them before it sends bfloat16.
_CUDA_VERSION, _CUDNN_VERSION, _NCCL_VERSION = "13.0", 91300, (2, 27, 7)


def _tell_versions(torch: Any) -> None:
    torch.version.cuda = torch.version.cuda or _CUDA_VERSION
    torch.backends.cudnn.version = lambda: _CUDNN_VERSION
    torch.cuda.nccl.version = lambda: _NCCL_VERSION
    torch.cuda.nccl.is_available = lambda tensors: True
