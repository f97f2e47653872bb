"""Rank 1 stops itself in the third step, and a helper wakes it shortly after.

ranks: 3
kind: none
ends: ok
"""

import os
import signal
import subprocess

import torch
import torch.distributed as dist


def pause():
    """Give the processor back to the machine's owner."""
    sleeper = os.getpid()
    subprocess.Popen(["sh", "-c", f"sleep 0.5; kill -CONT {sleeper}"])
    os.kill(os.getpid(), signal.SIGSTOP)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    weight = torch.ones(4)
    for step in range(5):
        grad = weight * (rank + 1)
        if rank == 1 and step == 2:
            pause()
        dist.all_reduce(grad)
        weight -= 0.01 * grad
    print(f"rank {rank}: {weight.sum().item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
