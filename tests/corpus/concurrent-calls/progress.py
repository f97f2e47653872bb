"""A thread gathers the progress of all ranks while the main thread trains: both use the default group.

ranks: 3
kind: concurrent-calls
look at: 2
ends: hangs
"""

import threading
import time

import torch
import torch.distributed as dist
from torch import nn

FIRST_REPORT_S = {0: 2.0, 1: 2.0, 2: 0.0}  # rank 2 has nothing to load, and reports at once
LOAD_S = {0: 0.5, 1: 0.5, 2: 2.5}


class Progress(threading.Thread):
    def __init__(self, state):
        super().__init__()
        self.state = state

    def run(self):
        time.sleep(FIRST_REPORT_S[self.state["rank"]])
        rows = [None] * dist.get_world_size()
        dist.all_gather_object(rows, dict(self.state))  # GUILTY
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
            dist.all_reduce(parameter.grad)  # GUILTY
        state["step"] = step


def main():
    dist.init_process_group("gloo")
    state = {"rank": dist.get_rank(), "step": 0}
    progress = Progress(state)
    progress.start()
    train(state)  # GUILTY
    progress.join()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
