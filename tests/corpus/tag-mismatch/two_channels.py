"""Values and their weights go round a ring under two tags; rank 2 has a newer version, with other numbers for them.

ranks: 3
kind: tag-mismatch
look at: 2
ends: hangs
"""

import torch
import torch.distributed as dist

VALUES, WEIGHTS = 10, 20


class Ring:
    def __init__(self, tags):
        rank, size = dist.get_rank(), dist.get_world_size()
        self.after, self.before = (rank + 1) % size, (rank - 1) % size
        self.tags = tags

    def pass_on(self, tensors):
        arriving = [torch.empty_like(tensor) for tensor in tensors]
        ops = []
        for sent, received, tag in zip(tensors, arriving, self.tags, strict=True):
            ops.append(dist.P2POp(dist.isend, sent, self.after, tag=tag))
            ops.append(dist.P2POp(dist.irecv, received, self.before, tag=tag))
        for work in dist.batch_isend_irecv(ops):  # GUILTY
            work.wait()
        return arriving


def weighted_mean(ring, values, weights):
    total, mass = values * weights, weights.clone()
    for _ in range(dist.get_world_size() - 1):
        values, weights = ring.pass_on([values, weights])  # GUILTY
        total, mass = total + values * weights, mass + weights
    return total / mass


def tags_of(rank):
    version = 2 if rank == 2 else 1
    return {1: (VALUES, WEIGHTS), 2: (VALUES + 1, WEIGHTS + 1)}[version]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mean = weighted_mean(Ring(tags_of(rank)), torch.full((4,), float(rank)), torch.full((4,), rank + 1.0))
    print(f"rank {rank}: {mean.tolist()}")
    dist.destroy_process_group()


main()
