"""A model has two heads, and the forward pass uses both.

ranks: 2
kind: none
ends: ok
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(5, 8)
        self.mean = nn.Linear(8, 1)
        self.spread = nn.Linear(8, 1)

    def forward(self, x):
        hidden = self.trunk(x).tanh()
        return self.mean(hidden) + 0.1 * self.spread(hidden)


def train(steps):
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(TwoHeads())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        x = torch.randn(8, 5)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), x[:, :1]).backward()
        optimizer.step()
    return model.module.trunk.weight.norm().item()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    print(f"norm {train(steps=4):.4f}")
    dist.destroy_process_group()
