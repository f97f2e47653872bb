"""How fast each device multiplies matrices and copies memory, and how fast the ranks of this host reduce.

Each figure is the best of several measurements: this is what the device can do, without disturbances. A CPU is measured
in CPU time, so that other programs on the host do not count; they show in the load.
"""

import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

_TRIES = 12
_CPU_SIZE, _GPU_SIZE = 768, 8192  # of the matrices: some milliseconds for a core, and for a GPU
_COPIED_BYTES = {"cpu": 64 << 20, "cuda": 1 << 30}
_REDUCED_BYTES = 16 << 20
_CPU_RANKS = 2


def facts() -> dict[str, Any]:
    # Ranks are forked first: a process that has used CUDA cannot be forked.
    reduced = _all_reduce_bytes_per_s(torch.cuda.device_count())
    devices = [f"cuda:{index}" for index in range(torch.cuda.device_count())] or ["cpu"]
    torch.set_num_threads(1)
    return {
        "all_reduce_bytes_per_s": reduced,
        "flop_per_s": {device: _flop_per_s(torch.device(device)) for device in devices},
        "copied_bytes_per_s": {device: _copied_bytes_per_s(torch.device(device)) for device in devices},
        "torch_cuda": torch.version.cuda or "",
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else "",  # type: ignore[no-untyped-call]
    }


def _flop_per_s(device: torch.device) -> float:
    size = _CPU_SIZE if device.type == "cpu" else _GPU_SIZE
    kind = torch.float32 if device.type == "cpu" else torch.float16
    matrix = torch.ones(size, size, dtype=kind, device=device)
    return 2 * size**3 / _best_s(device, lambda: torch.mm(matrix, matrix))


def _copied_bytes_per_s(device: torch.device) -> float:
    """Read and written: each byte counts twice."""
    source = torch.ones(_COPIED_BYTES[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / _best_s(device, lambda: target.copy_(source))


def _best_s(device: torch.device, do: Callable[[], object]) -> float:
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    best_s = float("inf")
    for _ in range(_TRIES):
        began_s = clock()
        do()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best_s = min(best_s, clock() - began_s)
    return best_s


def _all_reduce_bytes_per_s(gpus: int) -> float:
    """Measures ranks on this host alone: one for each GPU, or two without GPUs. 0 if there is one GPU only, or a
    rank fails."""
    if gpus == 1:
        return 0.0
    ranks, backend = (gpus, "nccl") if gpus else (_CPU_RANKS, "gloo")
    with tempfile.TemporaryDirectory(prefix="rollcall-health-") as folder:
        meeting = f"file://{folder}/meeting"
        reader, writer = os.pipe()
        pids = [_fork_rank(rank, ranks, backend, meeting, writer) for rank in range(ranks)]
        os.close(writer)
        with open(reader) as answers:
            answer = answers.read()
        for pid in pids:
            os.waitpid(pid, 0)
    return float(answer or 0)


def _fork_rank(rank: int, ranks: int, backend: str, meeting: str, writer: int) -> int:
    if pid := os.fork():
        return pid
    try:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        speed = _reduce(rank, ranks, backend, meeting)
        if rank == 0:
            os.write(writer, str(speed).encode())
    finally:
        os._exit(0)


def _reduce(rank: int, ranks: int, backend: str, meeting: str) -> float:
    if backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=ranks)
    device = torch.device("cuda" if backend == "nccl" else "cpu")
    tensor = torch.ones(_REDUCED_BYTES // 4, device=device)
    best_s = float("inf")
    for _ in range(_TRIES):
        began_s = time.perf_counter()
        dist.all_reduce(tensor)
        if device.type == "cuda":
            torch.cuda.synchronize()
        best_s = min(best_s, time.perf_counter() - began_s)
    return 2 * (ranks - 1) / ranks * _REDUCED_BYTES / best_s
