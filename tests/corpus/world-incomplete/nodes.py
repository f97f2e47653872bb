"""The program is told of two nodes with two ranks each, but only three ranks come.

ranks: 3
kind: world-incomplete
look at: 0,1,2
ends: fails
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

NODES = 2
RANKS_PER_NODE = 2


def connect():
    os.environ["WORLD_SIZE"] = str(NODES * RANKS_PER_NODE)
    dist.init_process_group("gloo", timeout=timedelta(seconds=4))  # GUILTY


def main():
    connect()
    total = torch.ones(1)
    dist.all_reduce(total)
    print(f"{int(total)} ranks are here")
    dist.destroy_process_group()


main()
