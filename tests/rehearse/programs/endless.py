"""Rank 0 polls without an end, rank 1 waits for what nobody gives."""

import threading

import torch.distributed as dist

dist.init_process_group("nccl")
if dist.get_rank() == 0:
    done = False
    while not done:  # POLLS
        done = done and True
else:
    threading.Event().wait()  # WAITS
dist.barrier()
