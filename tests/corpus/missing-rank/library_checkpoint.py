"""Only rank 0 saves a checkpoint, with a library that gathers from all ranks: it waits for the others there.

ranks: 3
kind: missing-rank
look at: 0
ends: hangs
"""

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn


class Trainer:
    def __init__(self, folder):
        torch.manual_seed(1)
        self.folder = folder
        self.model = nn.Linear(6, 6)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)

    def step(self):
        self.optimizer.zero_grad()
        self.model(torch.randn(8, 6)).square().mean().backward()
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)
        self.optimizer.step()

    def save(self, number):
        state = {"model": self.model.state_dict(), "step": torch.tensor(number)}
        checkpoint.save(state, checkpoint_id=f"{self.folder}/step-{number}")  # GUILTY

    def run(self, steps, save_every):
        for number in range(1, steps + 1):
            self.step()
            if number % save_every == 0 and dist.get_rank() == 0:
                self.save(number)  # GUILTY


if __name__ == "__main__":
    dist.init_process_group("gloo")
    Trainer(folder="checkpoints").run(steps=9, save_every=3)
    dist.destroy_process_group()
