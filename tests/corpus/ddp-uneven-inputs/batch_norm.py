"""Rank 1 is handed a longer stream, and enters a forward pass that nobody else makes.

ranks: 3
kind: ddp-uneven-inputs
look at: 1
ends: hangs
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STREAMS = {0: 4, 1: 5, 2: 4}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(2, 4, kernel_size=3)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 2)

    def forward(self, signal):
        return self.head(self.norm(self.conv(signal)).relu().mean(dim=2))


class Job:
    def __init__(self):
        dist.init_process_group("gloo")
        self.rank = dist.get_rank()
        torch.manual_seed(self.rank)
        self.model = DistributedDataParallel(Net())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def run(self):
        correct = torch.zeros(1)
        for _ in range(STREAMS[self.rank]):
            scores = self.model(torch.randn(5, 2, 9))  # GUILTY
            loss = scores.logsumexp(dim=1).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            correct += (scores.argmax(dim=1) == 0).sum()
        dist.all_reduce(correct)
        print(f"rank {self.rank}: {int(correct)} in class 0")


if __name__ == "__main__":
    Job().run()
    dist.destroy_process_group()
