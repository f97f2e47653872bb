"""What every contender of benchmarks/train.py trains: the same data, models, batch size and optimizer for all."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset, TensorDataset

BATCH_SIZE = 32
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Workload:
    make_model: Callable[[], nn.Module]
    make_data: Callable[[], Dataset[tuple[torch.Tensor, ...]]]
    loss: Loss
    batch_size: int


class Transformer(nn.Module):
    """A GPT-like model of about ten million parameters."""

    def __init__(
        self, vocabulary: int = 512, width: int = 320, layers: int = 8, heads: int = 5, length: int = 64
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.randn(length, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.layers(self.tokens(tokens) + self.positions, mask=self.mask, is_causal=True)
        return self.head(hidden).flatten(0, 1)


def make_mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def make_cnn() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 4 * 4, 10)),
    )


def images() -> TensorDataset:
    """Eight times as many as the digits; random, so that scikit-learn is not needed."""
    generator = torch.Generator().manual_seed(0)
    count = 8 * 1797
    return TensorDataset(
        torch.rand(count, 1, 8, 8, generator=generator), torch.randint(0, 10, (count,), generator=generator)
    )


def texts() -> TensorDataset:
    tokens = torch.randint(0, 512, (128, 65), generator=torch.Generator().manual_seed(0))
    return TensorDataset(tokens[:, :-1], tokens[:, 1:])


def token_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs, targets.flatten())


WORKLOADS = {
    "MLP": Workload(make_mlp, images, nn.functional.cross_entropy, BATCH_SIZE),
    "CNN": Workload(make_cnn, images, nn.functional.cross_entropy, BATCH_SIZE),
    "transformer": Workload(Transformer, texts, token_loss, 8),
}


def chosen() -> Workload:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # two ranks on two cores
    return WORKLOADS[os.environ["ROLLCALL_WORKLOAD"]]


class Turns:
    """Epochs in turn with the other libraries, so that a machine that slows down slows all of them alike.

    The benchmark lets each rank go by a byte in a pipe, in which the others wait without taking time, and reads from
    another what rank 0 took.
    """

    def __init__(self) -> None:
        folder = Path(os.environ["ROLLCALL_TURNS"])
        self._go, self._took = (os.open(folder / name, os.O_RDWR) for name in ("go", "took"))
        self.epochs = int(os.environ["ROLLCALL_EPOCHS"])
        self._began = 0.0

    def begin(self) -> None:
        """Before each epoch, on every rank."""
        os.read(self._go, 1)
        dist.barrier()
        self._began = time.perf_counter()

    def end(self) -> None:
        """After each epoch."""
        took_s = time.perf_counter() - self._began
        if dist.get_rank() == 0:
            os.write(self._took, f"{took_s}\n".encode())
