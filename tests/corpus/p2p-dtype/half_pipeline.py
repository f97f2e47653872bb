"""Activations go down a pipeline in bfloat16, and the last stage takes them for float16.

ranks: 3
kind: p2p-dtype
look at: 2
ends: ok
"""

import torch
import torch.distributed as dist
from torch import nn


class Block(nn.Sequential):
    def __init__(self, width):
        super().__init__(nn.Linear(width, width), nn.Tanh())


class Pipeline:
    def __init__(self, block, wire):
        self.block, self.wire = block, wire
        self.rank, self.last = dist.get_rank(), dist.get_world_size() - 1

    def run(self, shape):
        x = torch.randn(shape)
        if self.rank > 0:
            arriving = torch.empty(shape, dtype=self.wire)
            dist.recv(arriving, src=self.rank - 1)  # GUILTY
            x = arriving.float()
        y = self.block(x)
        if self.rank < self.last:
            dist.send(y.to(self.wire), dst=self.rank + 1)
        return y


@torch.no_grad()
def main():
    dist.init_process_group("gloo")
    torch.manual_seed(5)
    wire = torch.float16 if dist.get_rank() == 2 else torch.bfloat16
    pipeline = Pipeline(Block(16), wire)
    for _ in range(3):
        y = pipeline.run((4, 16))
    print(f"rank {pipeline.rank}: {y.abs().mean().item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
