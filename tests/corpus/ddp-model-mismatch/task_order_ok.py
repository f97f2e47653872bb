"""All ranks list their tasks in one order.

ranks: 3
kind: none
ends: ok
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class MultiTask(nn.Module):
    def __init__(self, tasks):
        super().__init__()
        self.shared = nn.Linear(4, 8)
        self.heads = nn.ModuleDict({task: nn.Linear(8, 1) for task in tasks})

    def forward(self, x):
        hidden = self.shared(x).relu()
        return {task: head(hidden) for task, head in self.heads.items()}


def loss_of(outputs, targets):
    return sum((outputs[task] - target).square().mean() for task, target in targets.items())


def train(tasks, targets):
    model = DistributedDataParallel(MultiTask(tasks))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(5):
        optimizer.zero_grad()
        loss = loss_of(model(torch.ones(2, 4)), targets)
        loss.backward()
        optimizer.step()
    return loss.item()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    targets = {"age": 40.0, "height": 1.7, "income": 3.0}
    tasks = sorted(targets)
    print(f"loss {train(tasks, targets):.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
