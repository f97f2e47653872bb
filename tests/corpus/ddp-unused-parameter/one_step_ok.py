"""A single training step goes through all layers.

ranks: 2
kind: none
ends: ok
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Residual(nn.Module):
    def __init__(self, width, depth, skip):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.skip = skip

    def forward(self, x):
        for number, layer in enumerate(self.layers):
            if number not in self.skip:
                x = x + layer(x).relu()
        return x


def adapt(net):
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model(torch.randn(3, 6)).square().mean().backward()
    optimizer.step()
    return net.layers[0].weight.sum().item()


dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
weights = adapt(Residual(width=6, depth=4, skip=set()))
print(f"weights {weights:.5f}")
dist.destroy_process_group()
