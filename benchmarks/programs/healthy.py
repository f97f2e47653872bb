"""healthy.py KIND SECONDS: a correct job that goes on for some time, to be looked at meanwhile."""

import random
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

WIDTH = 64


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 1))


def pause() -> None:
    """Data that takes its time, now and then longer."""
    time.sleep(random.expovariate(200) + (random.random() < 0.02) * 0.05)


def train_step(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    pause()
    optimizer.zero_grad()
    net(torch.randn(8, WIDTH)).square().mean().backward()
    optimizer.step()


def goes_on(until_s: float) -> bool:
    """Whether all ranks continue: the same answer everywhere."""
    flag = torch.tensor(float(time.monotonic() < until_s))
    dist.all_reduce(flag, op=dist.ReduceOp.MIN)
    return bool(flag)


def ddp(until_s: float) -> None:
    net = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    while goes_on(until_s):
        for _ in range(10):
            train_step(net, optimizer)
        if dist.get_rank() == 0:
            time.sleep(0.03)  # a checkpoint
        dist.barrier()


def fsdp(until_s: float) -> None:
    net = nn.Sequential(*(fully_shard(nn.Linear(WIDTH, WIDTH)) for _ in range(3)))
    fully_shard(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    while goes_on(until_s):
        for _ in range(5):
            train_step(net, optimizer)


def pipeline(until_s: float) -> None:
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    while goes_on(until_s):
        sent = []
        for micro in range(4):
            x = torch.randn(8, WIDTH)
            if rank > 0:
                dist.recv(x, src=rank - 1, tag=micro)
            pause()
            if rank < last:
                sent.append(dist.isend(x, dst=rank + 1, tag=micro))
        for micro in range(4):
            x = torch.randn(8, WIDTH)
            if rank < last:
                dist.recv(x, src=rank + 1, tag=10 + micro)
            if rank > 0:
                dist.send(x, dst=rank - 1, tag=10 + micro)
        for work in sent:
            work.wait()


def handles(until_s: float) -> None:
    half = dist.new_subgroups(dist.get_world_size() // 2)[0]
    while goes_on(until_s):
        works = []
        for _ in range(6):
            pause()
            works.append(dist.all_reduce(torch.ones(WIDTH), async_op=True))
            dist.all_reduce(torch.ones(4), group=half)
        while not works[0].is_completed():
            time.sleep(0.001)
        for work in works:
            work.wait()


def joined(until_s: float) -> None:
    net = DistributedDataParallel(nn.Linear(WIDTH, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    while goes_on(until_s):
        with net.join():
            for _ in range(5 + dist.get_rank() % 3):
                train_step(net, optimizer)


KINDS = {"ddp": ddp, "fsdp2": fsdp, "pipeline": pipeline, "async": handles, "joined": joined}

if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    KINDS[sys.argv[1]](time.monotonic() + float(sys.argv[2]))
    dist.destroy_process_group()
