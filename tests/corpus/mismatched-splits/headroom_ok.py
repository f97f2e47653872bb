"""The buffer of each rank has room for what is sent.

ranks: 4
kind: none
ends: ok
"""

import torch
import torch.distributed as dist

TOKENS = 6


def swap(tokens, room):
    rows = dist.get_world_size()
    received = tokens.new_empty(rows * room)
    dist.all_to_all_single(received, tokens, [room] * rows, [TOKENS] * rows)
    return received


dist.init_process_group("gloo")
rank = dist.get_rank()
for _ in range(3):
    print(swap(torch.full((4 * TOKENS,), float(rank)), TOKENS).sum().item())
dist.barrier()
dist.destroy_process_group()
