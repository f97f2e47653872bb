"""Ranks meet through a file and wait for the two that were started.

ranks: 2
kind: none
ends: ok
"""

import os
import tempfile
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

PARTIES = 2


def meeting_point():
    return Path(tempfile.gettempdir()) / f"meeting-{os.environ['MASTER_PORT']}-{os.getppid()}"


class Session:
    def __enter__(self):
        store = dist.FileStore(str(meeting_point()), PARTIES)
        rank = int(os.environ["RANK"])
        dist.init_process_group("gloo", store=store, rank=rank, world_size=PARTIES, timeout=timedelta(seconds=4))
        return rank

    def __exit__(self, *error):
        dist.destroy_process_group()


with Session() as rank:
    vote = torch.tensor([rank])
    dist.all_reduce(vote, op=dist.ReduceOp.MAX)
    print(f"rank {rank} hears {int(vote)}")
