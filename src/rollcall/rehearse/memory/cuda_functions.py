"""The functions of torch.cuda about memory: they answer from the model of the allocator."""

from collections import defaultdict
from typing import Any

import torch

from rollcall.rehearse.memory.allocations import Allocations, DeviceMemory
from rollcall.rehearse.rank import device


def install(allocations: Allocations, total_bytes: int, usable_bytes: int) -> None:
    def on(which: Any) -> DeviceMemory:
        return allocations.on(device.index_of(which))

    def mem_get_info(device: Any = None) -> tuple[int, int]:
        return max(usable_bytes - on(device).allocator.reserved_bytes, 0), total_bytes

    def empty_cache() -> None:
        on(None).allocator.empty_cache()

    functions = {
        "memory_allocated": lambda device=None: on(device).allocator.allocated_bytes,
        "max_memory_allocated": lambda device=None: on(device).allocator.peak_allocated_bytes,
        "memory_reserved": lambda device=None: on(device).allocator.reserved_bytes,
        "max_memory_reserved": lambda device=None: on(device).allocator.peak_reserved_bytes,
        "reset_peak_memory_stats": lambda device=None: on(device).allocator.reset_peaks(),
        "reset_max_memory_allocated": lambda device=None: on(device).allocator.reset_peaks(),
        "memory_stats": lambda device=None: _stats(on(device)),
        "mem_get_info": mem_get_info,
        "empty_cache": empty_cache,
    }
    for module in (torch.cuda, torch.cuda.memory):
        for name, function in functions.items():
            setattr(module, name, function)


def _stats(memory: DeviceMemory) -> dict[str, int]:
    """The keys that programs log; zero for the others."""
    allocator = memory.allocator
    found: dict[str, int] = defaultdict(int)
    for name, current, peak in (
        ("allocated", allocator.allocated_bytes, allocator.peak_allocated_bytes),
        ("active", allocator.allocated_bytes, allocator.peak_allocated_bytes),
        ("reserved", allocator.reserved_bytes, allocator.peak_reserved_bytes),
    ):
        found[f"{name}_bytes.all.current"], found[f"{name}_bytes.all.peak"] = current, peak
    return found
