"""Between epochs rank 0 evaluates alone, on samples of another width than the model takes, while the others wait.

ranks: 3
kind: rank-failed
look at: 0
ends: fails
"""

import torch
import torch.distributed as dist
from torch import nn


class Classifier(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(width, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.body(x))


def train_epoch(model, lr):
    for _ in range(3):
        loss = model(torch.randn(4, 10)).logsumexp(dim=1).mean()
        for parameter, grad in zip(model.parameters(), torch.autograd.grad(loss, model.parameters()), strict=True):
            dist.all_reduce(grad)
            parameter.data -= lr * grad


@torch.no_grad()
def evaluate(model, samples):
    votes = model(samples).argmax(dim=1)  # GUILTY
    print(f"votes {torch.bincount(votes, minlength=3).tolist()}")


dist.init_process_group("gloo")
torch.manual_seed(0)
model = Classifier(width=10)
for _ in range(2):
    train_epoch(model, lr=0.01)
    if dist.get_rank() == 0:
        evaluate(model, torch.ones(20, 12))
    dist.barrier()
dist.destroy_process_group()
