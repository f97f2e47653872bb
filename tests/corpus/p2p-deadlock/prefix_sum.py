"""A running total goes round a ring in which every rank, the first one too, waits for its left neighbour.

ranks: 3
kind: p2p-deadlock
look at: 0,1,2
ends: hangs
"""

import torch
import torch.distributed as dist


def pass_round(amount: float) -> float:
    """Add each rank's amount to a total that travels once round the ring."""
    rank, size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % size, (rank + 1) % size
    total = torch.zeros(1)
    dist.recv(total, left)  # GUILTY
    total += amount
    dist.send(total, right)
    return total.item()


dist.init_process_group("gloo")
tokens_seen = 1000.0 * (dist.get_rank() + 1)
print(f"rank {dist.get_rank()}: tokens up to here {pass_round(tokens_seen):.0f}")
dist.barrier()
dist.destroy_process_group()
