"""The program is told of as many ranks as come.

ranks: 3
kind: none
ends: ok
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

NODES = 1
RANKS_PER_NODE = 3


def connect():
    os.environ["WORLD_SIZE"] = str(NODES * RANKS_PER_NODE)
    dist.init_process_group("gloo", timeout=timedelta(seconds=4))


def main():
    connect()
    total = torch.ones(1)
    dist.all_reduce(total)
    print(f"{int(total)} ranks are here")
    dist.destroy_process_group()


main()
