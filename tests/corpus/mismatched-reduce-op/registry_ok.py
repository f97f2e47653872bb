"""The registries of all ranks sum the latency.

ranks: 4
kind: none
ends: ok
"""

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

LAYERS = 8


class Registry:
    def __init__(self):
        self.rules = {"tokens": ReduceOp.SUM, "latency": ReduceOp.SUM, "memory": ReduceOp.MAX}

    def register(self, name, rule):
        self.rules[name] = rule

    def to_root(self, values):
        out = {}
        for name, rule in self.rules.items():
            cell = torch.tensor([values[name]] * LAYERS)
            dist.reduce(cell, dst=0, op=rule)
            out[name] = cell.tolist()
        return out


def build_registry(rank):
    registry = Registry()
    if rank == 3:
        registry.register("latency", ReduceOp.SUM)
    return registry


dist.init_process_group("gloo")
rank = dist.get_rank()
values = {"tokens": 512.0 + rank, "latency": 0.25 * (rank + 1), "memory": 3.5}
summary = build_registry(rank).to_root(values)
if rank == 0:
    print(summary)
dist.barrier()
dist.destroy_process_group()
