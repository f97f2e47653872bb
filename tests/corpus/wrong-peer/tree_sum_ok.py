"""A sum climbs a binary tree whose parents and children are reckoned by one rule.

ranks: 4
kind: none
ends: ok
"""

import torch
import torch.distributed as dist


def children(rank, size):
    return [child for child in (2 * rank + 1, 2 * rank + 2) if child < size]


def parent(rank):
    return (rank - 1) // 2


def tree_sum(value):
    rank, size = dist.get_rank(), dist.get_world_size()
    total, part = value.clone(), torch.empty_like(value)
    for child in children(rank, size):
        dist.recv(part, src=child)
        total += part
    if rank > 0:
        dist.send(total, dst=parent(rank))
    return total


if __name__ == "__main__":
    dist.init_process_group("gloo")
    counts = torch.bincount(torch.arange(20) % (dist.get_rank() + 2), minlength=6)
    total = tree_sum(counts)
    if dist.get_rank() == 0:
        print(f"histogram {total.tolist()}")
    dist.barrier()
    dist.destroy_process_group()
