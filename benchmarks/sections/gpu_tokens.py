"""A model of GPT-2's size in bf16 on one GPU: tokens a second with rollcall.Trainer and with a raw loop, in turn.

Needs torch and nothing else, so that it runs on a bare machine: PYTHONPATH=src python benchmarks/train.py --only gpu
"""

import argparse
import importlib.util
import logging
import math
import sys
import time
import types
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from programs.gpt import LAYERS, LENGTH, VOCABULARY, WIDTH, Gpt

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


def compare(batch_size: int, steps: int, rounds: int, compiled: bool) -> Figures:
    world = _alone()
    torch.backends.cuda.matmul.allow_tf32 = True
    tokens = torch.randint(0, VOCABULARY, (batch_size * steps, LENGTH + 1), generator=torch.Generator().manual_seed(0))
    data = TensorDataset(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
    raw, ours = _Raw(data, batch_size, compiled), _Ours(data, batch_size, compiled, world)
    for each in (raw, ours):  # not counted
        each.epoch()
    rates: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        # There and back: who comes second finds a warmer GPU.
        took_s = [0.0, 0.0]
        for place in (0, 1, 1, 0):
            torch.cuda.synchronize()
            began = time.perf_counter()
            (raw, ours)[place].epoch()
            torch.cuda.synchronize()
            took_s[place] += time.perf_counter() - began
        for rate, seconds in zip(rates, took_s, strict=True):
            rate.append(2 * len(data) * LENGTH / seconds)
        print(
            f"  round {number + 1} of {rounds}: raw {rates[0][-1]:,.0f}, rollcall {rates[1][-1]:,.0f} tokens/s",
            file=sys.stderr,
        )
    parameters = sum(each.numel() for each in raw.model.parameters())
    name = torch.cuda.get_device_name()
    peak = next((flops for part, flops in PEAK_FLOPS.items() if part in name), None)
    # Forward and backward: six operations for each parameter, and attention over the whole length.
    return Figures(name, parameters, *rates, 6 * parameters + 12 * LAYERS * WIDTH * LENGTH, peak)


class _Raw:
    """A hand-written loop."""

    def __init__(self, data: TensorDataset, batch_size: int, compiled: bool) -> None:
        self.model, self._optimizer = _make(compiled)
        self._loader = DataLoader(data, batch_size, shuffle=True, pin_memory=True)

    def epoch(self) -> None:
        for inputs, targets in self._loader:
            inputs, targets = inputs.cuda(non_blocking=True), targets.cuda(non_blocking=True)
            self._optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", torch.bfloat16):
                loss = loss_of(self.model(inputs), targets)
            loss.backward()
            self._optimizer.step()


class _Ours:
    def __init__(self, data: TensorDataset, batch_size: int, compiled: bool, world: Any) -> None:
        import rollcall

        model, optimizer = _make(compiled)
        self._loader = rollcall.prepare_dataloader(data, world, batch_size, pin_memory=True)
        self._trainer = rollcall.Trainer(
            model, optimizer, loss_of, world, strategy="none", precision="bf16", progress=False
        )

    def epoch(self) -> None:
        self._trainer.fit(self._loader, self._trainer.epoch + 1)


def _make(compiled: bool) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Gpt().cuda()
    if compiled:
        model.compile()
    return model, torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)


def _alone() -> Any:
    """A world of one rank, without rollcall.init, which needs more packages than torch."""
    if importlib.util.find_spec("pydantic") is None:
        stand_in: Any = types.ModuleType("pydantic")
        stand_in.BaseModel, stand_in.ConfigDict, stand_in.ValidationError = object, dict, ValueError
        sys.modules["pydantic"] = stand_in
    from rollcall.world import World

    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=torch.device("cuda", 0))
    info: Any = types.SimpleNamespace(global_rank=0, world_size=1, backend="nccl")
    return World(info, torch.device("cuda", 0), logging.getLogger("rollcall"), lambda _failed: None)


def describe(figures: Figures) -> list[tuple[str, str, str]]:
    """Name, tokens a second, model FLOP utilisation."""
    rows = []
    for name, rates in (("a raw loop", figures.raw_tokens_per_s), ("rollcall.Trainer", figures.our_tokens_per_s)):
        used = figures.utilisation(median(rates))
        rows.append((name, f"{median(rates):,.0f}", "–" if used is None or math.isnan(used) else f"{used:.1%}"))
    return rows


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
    figures = compare(options.batch_size, options.steps, options.rounds, options.compile)
    print(f"{figures.device}, {figures.parameters / 1e6:.0f} M parameters, bf16, one rank, torch {torch.__version__}")
    for name, rate, used in describe(figures):
        print(f"  {name:<18} {rate:>10} tokens/s   model FLOP utilisation {used}")
    print(f"  rollcall.Trainer has {figures.share:.3f} of the raw loop's tokens/s (goal: ≥ 0.99)")
    dist.destroy_process_group()
    return 0
