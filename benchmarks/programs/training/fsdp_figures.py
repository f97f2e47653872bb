"""What the FSDP2 programs train, and how they are measured: seconds of a step, of a save, of a resume, peak memory."""

import json
import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# A GPU gets a model that keeps it busy: 134 million parameters instead of 8 million.
STEPS, BATCH, WIDTH, LAYERS = (20, 64, 4096, 8) if DEVICE == "cuda" else (20, 16, 1024, 8)


class Layers(nn.Module):
    """Eight units of WIDTH × WIDTH parameters each."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            hidden = torch.relu(layer(hidden))
        return hidden


def dataset() -> TensorDataset:
    samples = STEPS * BATCH * int(os.environ["WORLD_SIZE"])
    inputs = torch.randn(samples, WIDTH, generator=torch.Generator().manual_seed(0))
    return TensorDataset(inputs, inputs.roll(1, 1))


def batches(rank: int, ranks: int) -> Iterator[tuple[torch.Tensor, ...]]:
    data = dataset().tensors
    for begin in range(rank * BATCH, len(data[0]), ranks * BATCH):
        yield tuple(each[begin : begin + BATCH].to(DEVICE) for each in data)


def loss_of(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(outputs, targets)


class Figures:
    def __init__(self) -> None:
        torch.set_num_threads(1)
        torch.ones(64, 64, device=DEVICE).mm(torch.ones(64, 64, device=DEVICE))  # loads cuBLAS, which counts for none
        self._found: dict[str, float] = {}

    @contextmanager
    def timing(self, name: str, times: int = 1) -> Iterator[None]:
        _wait_for_all()
        began = time.perf_counter()
        yield
        _wait_for_all()
        self._found[name] = (time.perf_counter() - began) / times

    def tell(self) -> None:
        """Rank 0's, in a file: others print."""
        self._found["peak_mib"] = _peak_bytes() / 2**20
        if dist.get_rank() == 0:
            Path(os.environ["ROLLCALL_BENCH"], "fsdp.json").write_text(json.dumps(self._found))


def _wait_for_all() -> None:
    dist.barrier()
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def _peak_bytes() -> int:
    """Of the GPU where there is one, else of the process."""
    if DEVICE == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
