"""Rank 2 has made its buffer larger than what the others send, and expects as much.

ranks: 4
kind: mismatched-splits
look at: 2
ends: fails
"""

import torch
import torch.distributed as dist

TOKENS = 6


def swap(tokens, room):
    rows = dist.get_world_size()
    received = tokens.new_empty(rows * room)
    dist.all_to_all_single(received, tokens, [room] * rows, [TOKENS] * rows)  # GUILTY
    return received


dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(3):
    room = TOKENS + 2 * (rank == 2 and step == 2)
    print(swap(torch.full((4 * TOKENS,), float(rank)), room).sum().item())
dist.barrier()
dist.destroy_process_group()
