"""Only rank 0 enters the barrier after writing the checkpoint; the others are already in the next step.

ranks: 3
kind: missing-rank
look at: 0
ends: hangs
"""

import io

import torch
import torch.distributed as dist
from torch import nn


class Checkpointer:
    def __init__(self, every):
        self.every = every
        self.files = {}

    def maybe_save(self, step, model):
        if step % self.every:
            return
        if dist.get_rank() == 0:
            file = io.BytesIO()
            torch.save(model.state_dict(), file)
            self.files[step] = file
            dist.barrier()  # GUILTY


def average_gradients(model):
    for param in model.parameters():
        dist.all_reduce(param.grad, op=dist.ReduceOp.SUM)
        param.grad /= dist.get_world_size()


dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Linear(6, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
saver = Checkpointer(every=2)
for step in range(1, 6):
    optimizer.zero_grad()
    model(torch.randn(8, 6)).square().mean().backward()
    average_gradients(model)
    optimizer.step()
    saver.maybe_save(step, model)
print("saved", sorted(saver.files))
dist.destroy_process_group()
