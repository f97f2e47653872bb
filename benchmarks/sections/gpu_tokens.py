"""A model of GPT-2's size in bf16 on one GPU: tokens a second with rollcall.Trainer and with a raw loop, in turn.

Needs torch and nothing else, so that it runs on a bare machine: PYTHONPATH=src python benchmarks/train.py --only gpu
"""

import argparse
import contextlib
import importlib.util
import logging
import math
import sys
import time
import types
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import TensorDataset

from programs import gpt

# Dense bf16, as the makers state it.
PEAK_FLOPS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12, "4090": 165e12}


@dataclass(frozen=True)
class Figures:
    device: str
    parameters: int
    raw_tokens_per_s: list[float]
    our_tokens_per_s: list[float]
    flops_per_token: float
    peak_flops: float | None

    @property
    def share(self) -> float:
        """The share of the raw loop's tokens per second, by round, so that a slow GPU affects both."""
        return median(own / raw for own, raw in zip(self.our_tokens_per_s, self.raw_tokens_per_s, strict=True))

    def utilisation(self, tokens_per_s: float) -> float | None:
        return None if self.peak_flops is None else tokens_per_s * self.flops_per_token / self.peak_flops


def loss_of(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(outputs, targets.flatten())


def why_not() -> str | None:
    if not torch.cuda.is_available():
        return "there is no GPU here that torch can use"
    if not torch.cuda.is_bf16_supported():
        return f"{torch.cuda.get_device_name()} does not compute in bf16"
    return None


def use_small_sizes() -> None:
    """For a CPU, where only the program is tried."""
    gpt.LAYERS, gpt.HEADS, gpt.WIDTH, gpt.VOCABULARY, gpt.LENGTH = 2, 2, 32, 64, 16


def compare(world: Any, batch_size: int, steps: int, rounds: int, compiled: bool) -> Figures:
    torch.set_float32_matmul_precision("high")
    synchronize = torch.cuda.synchronize if world.device.type == "cuda" else lambda: None
    chance = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, gpt.VOCABULARY, (batch_size * steps, gpt.LENGTH + 1), generator=chance)
    data = TensorDataset(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
    raw, ours = _Raw(data, batch_size, compiled, world), _Ours(data, batch_size, compiled, world)
    for each in (raw, ours):  # not counted
        each.epoch()
    rates: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        # There and back: who comes second finds a warmer GPU.
        took_s = [0.0, 0.0]
        for place in (0, 1, 1, 0):
            synchronize()
            began = time.perf_counter()
            (raw, ours)[place].epoch()
            synchronize()
            took_s[place] += time.perf_counter() - began
        for rate, seconds in zip(rates, took_s, strict=True):
            rate.append(2 * len(data) * gpt.LENGTH / seconds)
        print(
            f"  round {number + 1} of {rounds}: raw {rates[0][-1]:,.0f}, rollcall {rates[1][-1]:,.0f} tokens/s",
            file=sys.stderr,
        )
    parameters = sum(each.numel() for each in raw.model.parameters())
    name = torch.cuda.get_device_name() if world.device.type == "cuda" else "CPU"
    peak = next((flops for part, flops in PEAK_FLOPS.items() if part in name), None)
    # Forward and backward: six operations for each parameter, and attention over the whole length.
    return Figures(name, parameters, *rates, 6 * parameters + 12 * gpt.LAYERS * gpt.WIDTH * gpt.LENGTH, peak)


class _Raw:
    """A hand-tuned loop: batches from pinned memory, one whole batch by one index, and no wait for the GPU."""

    def __init__(self, data: TensorDataset, batch_size: int, compiled: bool, world: Any) -> None:
        self.model, self._optimizer = _make(world.device)
        self._loss = torch.compile(loss_of) if compiled else loss_of
        if compiled:
            self.model.compile()
        self._data, self._batch_size, self._device = data, batch_size, world.device

    def epoch(self) -> None:
        for chosen in torch.randperm(len(self._data)).split(self._batch_size):
            inputs, targets = (self._to_device(each[chosen]) for each in self._data.tensors)
            self._optimizer.zero_grad(set_to_none=True)
            with _flash(self._device), torch.autocast(self._device.type, torch.bfloat16):
                loss = self._loss(self.model(inputs), targets)
            loss.backward()
            self._optimizer.step()

    def _to_device(self, batch: torch.Tensor) -> torch.Tensor:
        return batch.pin_memory().to(self._device, non_blocking=True) if self._device.type == "cuda" else batch


class _Ours:
    def __init__(self, data: TensorDataset, batch_size: int, compiled: bool, world: Any) -> None:
        import rollcall

        model, optimizer = _make(world.device)
        self._device, pins = world.device, world.device.type == "cuda"
        self._loader = rollcall.prepare_dataloader(data, world, batch_size, pin_memory=pins)
        self._trainer = rollcall.Trainer(
            model, optimizer, loss_of, world, strategy="none", precision="bf16", compile=compiled, progress=False
        )

    def epoch(self) -> None:
        with _flash(self._device):
            self._trainer.fit(self._loader, self._trainer.epoch + 1)


def _flash(device: torch.device) -> Any:
    """FlashAttention or nothing: a slower kernel would be taken without a word. cuDNN's is the faster one on Hopper."""
    if device.type != "cuda":
        return contextlib.nullcontext()
    return sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True)


def _make(device: torch.device) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = gpt.Gpt().to(device)
    return model, torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)


def alone(device_type: str) -> Any:
    """A world of one rank, without rollcall.init, which needs more packages than torch."""
    if importlib.util.find_spec("pydantic") is None:
        stand_in: Any = types.ModuleType("pydantic")
        stand_in.BaseModel, stand_in.ConfigDict, stand_in.ValidationError = object, dict, ValueError
        sys.modules["pydantic"] = stand_in
    from rollcall.world import World

    device = torch.device("cuda", 0) if device_type == "cuda" else torch.device("cpu")
    backend = "nccl" if device_type == "cuda" else "gloo"
    bound = {"device_id": device} if device_type == "cuda" else {}
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, **bound)
    info: Any = types.SimpleNamespace(global_rank=0, world_size=1, nnodes=1, local_world_size=1, backend=backend)
    return World(info, device, logging.getLogger("rollcall"), lambda _failed: None)


def describe(figures: Figures) -> list[tuple[str, str, str]]:
    """Name, tokens a second, model FLOP utilisation."""
    rows = []
    for name, rates in (("a raw loop", figures.raw_tokens_per_s), ("rollcall.Trainer", figures.our_tokens_per_s)):
        used = figures.utilisation(median(rates))
        rows.append((name, f"{median(rates):,.0f}", "–" if used is None or math.isnan(used) else f"{used:.1%}"))
    return rows


def report(figures: Figures) -> list[str]:
    rows = describe(figures)
    return [
        f"{figures.device}, {figures.parameters / 1e6:.0f} M parameters, bf16, one rank, torch {torch.__version__}",
        *(f"  {name:<18} {rate:>10} tokens/s   model FLOP utilisation {used}" for name, rate, used in rows),
        f"  rollcall.Trainer has {figures.share:.3f} of the raw loop's tokens/s (goal: ≥ 0.99)",
    ]


def as_json(figures: Figures) -> dict[str, Any]:
    used = {
        "raw_utilisation": figures.utilisation(median(figures.raw_tokens_per_s)),
        "our_utilisation": figures.utilisation(median(figures.our_tokens_per_s)),
    }
    return {**asdict(figures), "share": figures.share, **used}


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args(words)
    if reason := why_not():
        print(f"gpu: skipped, {reason}")
        return 0
    figures = compare(alone("cuda"), options.batch_size, options.steps, options.rounds, options.compile)
    print("\n".join(report(figures)))
    dist.destroy_process_group()
    return 0
