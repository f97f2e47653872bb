"""The gradients of all ranks are reduced in the order of the layers.

ranks: 3
kind: none
ends: ok
"""

import torch
import torch.distributed as dist
from torch import nn


class ReadyOrderReducer:
    def __init__(self, model):
        self.buckets = {name: torch.ones(p.numel()) for name, p in model.named_parameters()}
        self.works = {}

    def ready(self, name):
        self.works[name] = dist.all_reduce(self.buckets[name], async_op=True)

    def finish(self):
        for work in self.works.values():
            work.wait()
        return {name: bucket.sum().item() for name, bucket in self.buckets.items()}


def backward_order(model, rank):
    names = [name for name, _ in model.named_parameters()]
    return names if rank < 0 else names[::-1]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4, bias=False))
    reducer = ReadyOrderReducer(model)
    for name in backward_order(model, rank):
        reducer.ready(name)
    print(f"rank {rank}: {reducer.finish()}")
    dist.destroy_process_group()


main()
