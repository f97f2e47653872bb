"""Rank 0 stops rank 2 to have the machine for itself, and then lets it go on.

ranks: 3
kind: none
ends: ok
"""

import os
import signal
import time

import torch
import torch.distributed as dist


class Crew:
    def __init__(self):
        dist.init_process_group("gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.pids = [None] * self.size
        dist.all_gather_object(self.pids, os.getpid())

    def alone(self, other, work):
        """Do some work while another rank is held."""
        time.sleep(1)
        os.kill(self.pids[other], signal.SIGSTOP)
        try:
            return work()
        finally:
            os.kill(self.pids[other], signal.SIGCONT)


def heavy_work():
    return torch.linalg.svdvals(torch.eye(50)).sum()


def main():
    crew = Crew()
    score = torch.zeros(())
    if crew.rank == 0:
        score = crew.alone(other=2, work=heavy_work)
    dist.broadcast(score, src=0)
    dist.barrier()
    print(f"rank {crew.rank}: score {score.item():.1f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
