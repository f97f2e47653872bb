"""A thread gathers the progress of all ranks while the main thread trains: it has a group of its own.

ranks: 3
kind: none
ends: ok
"""

import threading
import time

import torch
import torch.distributed as dist
from torch import nn

FIRST_REPORT_S = {0: 2.0, 1: 2.0, 2: 0.0}  # rank 2 has nothing to load, and reports at once
LOAD_S = {0: 0.5, 1: 0.5, 2: 2.5}


class Progress(threading.Thread):
    def __init__(self, state, group):
        super().__init__()
        self.state, self.group = state, group

    def run(self):
        time.sleep(FIRST_REPORT_S[self.state["rank"]])
        rows = [None] * dist.get_world_size()
        dist.all_gather_object(rows, dict(self.state), group=self.group)
        if self.state["rank"] == 0:
            print(rows)


def train(state):
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    time.sleep(LOAD_S[state["rank"]])
    for step in range(4):
        model.zero_grad()
        model(torch.randn(5, 6)).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        state["step"] = step


def main():
    dist.init_process_group("gloo")
    state = {"rank": dist.get_rank(), "step": 0}
    progress = Progress(state, dist.new_group())
    progress.start()
    train(state)
    progress.join()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
