"""A model that does not fit on one GPU: peak memory of a step as it is, and with FSDP2, offload and recomputing.

Its size follows from the host's memory, because with offload the parameters, gradients and Adam's state are there. Its
batch is such that the activations alone would fill the card.
"""

import gc
import os
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

BYTES_PER_PARAMETER = 16  # float32: value, gradient, Adam's two moments
_HOST_SHARE = 0.7  # the rest is for pinned copies and the program itself
_ACTIVATION_BYTES = 34  # for each token, layer and unit of width, without recomputing, in bf16
STEPS = 3


@dataclass(frozen=True)
class Shape:
    layers: int
    width: int
    heads: int
    length: int
    batch: int
    vocabulary: int = 1024


@dataclass(frozen=True)
class Peak:
    """`peak_bytes` as torch.cuda.max_memory_allocated tells it; None on a CPU. `step_s` is that of the last step."""

    how: str
    parameters: int
    peak_bytes: int | None
    step_s: float | None
    failure: str | None


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, length, width = hidden.shape
        parts = self.qkv(self.norm_1(hidden)).view(batch, length, 3, self.heads, width // self.heads)
        mixed = functional.scaled_dot_product_attention(*parts.permute(2, 0, 3, 1, 4).unbind(0), is_causal=True)
        hidden = hidden + self.projection(mixed.transpose(1, 2).reshape(batch, length, width))
        return hidden + self.down(functional.gelu(self.up(self.norm_2(hidden)), approximate="tanh"))


class Big(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(shape.vocabulary, shape.width), nn.Linear(shape.width, shape.vocabulary)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.tokens(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden).flatten(0, 1)


def shape_for(device: torch.device) -> Shape:
    """As many layers as the host's memory allows with offload; on a CPU a small one, which only shows that it works."""
    if device.type != "cuda":
        return Shape(layers=3, width=32, heads=2, length=16, batch=2, vocabulary=64)
    width, length = 4096, 2048
    host_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    layers = int(host_bytes * _HOST_SHARE / BYTES_PER_PARAMETER / (12 * width**2))
    card_bytes = torch.cuda.get_device_properties(device).total_memory
    batch = -(-card_bytes // (_ACTIVATION_BYTES * layers * width * length))
    return Shape(layers, width, 32, length, batch)


def measure(world: Any) -> list[dict[str, Any]]:
    import rollcall

    shape = shape_for(world.device)
    offloaded = rollcall.Fsdp(units="Block", offload=True, recompute=True)
    peaks = [
        _measure(world, shape, "as it is, autocast to bf16", strategy="none"),
        _measure(world, shape, "FSDP2 on one rank, recompute, offload", strategy=offloaded),
    ]
    return [{**asdict(each), "shape": asdict(shape)} for each in peaks]


def _measure(world: Any, shape: Shape, how: str, **options: Any) -> Peak:
    is_cuda = world.device.type == "cuda"
    if is_cuda:
        torch.cuda.reset_peak_memory_stats()
    with torch.device("meta"):
        model = Big(shape)
    parameters, step_s, failure = sum(each.numel() for each in model.parameters()), None, None
    try:
        step_s = _train(world, shape, model, options)
    except torch.OutOfMemoryError:
        failure = "out of memory"
    peak = torch.cuda.max_memory_allocated() if is_cuda else None
    del model
    gc.collect()
    if is_cuda:
        torch.cuda.empty_cache()
    return Peak(how, parameters, peak, step_s, failure)


def _train(world: Any, shape: Shape, model: nn.Module, options: dict[str, Any]) -> float:
    import rollcall

    tokens = torch.randint(shape.vocabulary, (shape.batch * STEPS, shape.length + 1))
    ends: list[float] = []

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if world.device.type == "cuda":
            torch.cuda.synchronize()
        ends.append(time.perf_counter())
        return functional.cross_entropy(outputs, targets.flatten())

    trainer = rollcall.Trainer(
        model,
        lambda model: torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True),
        loss,
        world,
        precision="bf16",
        clip_norm=1.0,
        progress=False,
        **options,
    )
    data = TensorDataset(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
    trainer.fit(rollcall.prepare_dataloader(data, world, shape.batch), 1)
    return ends[-1] - ends[-2]


def describe(peaks: list[dict[str, Any]]) -> list[str]:
    lines = []
    for each in peaks:
        peak = "–" if each["peak_bytes"] is None else f"{each['peak_bytes'] / 2**30:.1f} GiB"
        end = each["failure"] or f"{each['step_s']:.1f} s a step"
        lines.append(f"  {each['how']:<40} {each['parameters'] / 1e9:.2f} G parameters, peak {peak}, {end}")
    return lines
