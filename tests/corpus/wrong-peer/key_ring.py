"""Blocks of keys go round a ring, and rank 1 takes them from the rank that it should give them to.

ranks: 4
kind: wrong-peer
look at: 1
ends: hangs
"""

import torch
import torch.distributed as dist

LEFT = {0: 3, 1: 2, 2: 1, 3: 2}
RIGHT = {0: 1, 1: 2, 2: 3, 3: 0}


def rotate(block, left, right):
    arriving = torch.empty_like(block)
    ring = (dist.isend, block, right), (dist.irecv, arriving, left)
    for work in dist.batch_isend_irecv([dist.P2POp(*each) for each in ring]):  # GUILTY
        work.wait()
    return arriving


def ring_scores(queries, keys):
    rank, size = dist.get_rank(), dist.get_world_size()
    scores = [queries @ keys.T]
    for _ in range(size - 1):
        keys = rotate(keys, LEFT[rank], RIGHT[rank])
        scores.append(queries @ keys.T)
    return torch.cat(scores, dim=1).softmax(dim=1)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    weights = ring_scores(torch.randn(2, 8), torch.randn(5, 8))
    print(f"{tuple(weights.shape)}, largest {weights.max().item():.4f}")
    dist.destroy_process_group()


main()
