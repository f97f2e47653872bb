"""Ranks at work: how many microseconds an all_reduce of 64 bytes, one of 4 MB and a small DDP step take goes into
$ROLLCALL_BENCH/steady.json. Any launcher that sets torchrun's variables can start this."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import train_steps
from torch import nn
from torch.nn.parallel import DistributedDataParallel

TURNS = {"all_reduce of 64 bytes": 500, "all_reduce of 4 MB": 50, "DDP step, 85,000 parameters": 300}


def main() -> None:
    dist.init_process_group("gloo")
    small, big = torch.zeros(16), torch.zeros(1 << 20)
    done: list[Callable[[], object]] = [lambda: dist.all_reduce(small), lambda: dist.all_reduce(big), make_step()]
    told = {what: _us(each, turns) for (what, turns), each in zip(TURNS.items(), done, strict=True)}
    if dist.get_rank() == 0:
        Path(os.environ["ROLLCALL_BENCH"], "steady.json").write_text(json.dumps(told))
    dist.destroy_process_group()


def make_step() -> Callable[[], None]:
    model = DistributedDataParallel(train_steps.make_model("digits"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, labels = torch.randn(64, 64), torch.randint(10, (64,))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    return step


def _us(do: Callable[[], object], turns: int) -> float:
    for _ in range(turns // 10):  # not measured
        do()
    dist.barrier()
    started_s = time.perf_counter()
    for _ in range(turns):
        do()
    return (time.perf_counter() - started_s) / turns * 1e6


main()
