"""Rank 0 collects one score from anybody for each rank of the world, itself counted.

ranks: 3
kind: unmatched-recv
look at: 0
ends: hangs
"""

import torch
import torch.distributed as dist


def evaluate(shard):
    predictions = (shard * 7919) % 3
    return (predictions == shard % 3).float().mean()


def collect(count):
    scores = {}
    for _ in range(count):
        score = torch.zeros(1)
        sender = dist.recv(score)  # GUILTY
        scores[sender] = score.item()
    return scores


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    score = evaluate(torch.arange(rank, 90, size))
    if rank == 0:
        scores = collect(size)
        scores[0] = score.item()
        print(f"accuracy {sum(scores.values()) / size:.3f}")
    else:
        dist.send(score.reshape(1), dst=0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
