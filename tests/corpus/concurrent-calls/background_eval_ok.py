"""Evaluation runs in a pool beside training, each on a group of its own.

ranks: 3
kind: none
ends: ok
"""

import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

LOAD_SECONDS = {0: 0.0, 1: 0.0, 2: 1.2}


def evaluate(group):
    time.sleep(0.6)
    correct = torch.tensor([7, 8, 9, 10])
    parts = [torch.empty_like(correct) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, correct, group=group)
    return torch.cat(parts).sum().item()


def train(group, rank):
    time.sleep(LOAD_SECONDS[rank])
    gradient = torch.arange(32.0) * rank
    dist.all_reduce(gradient, group=group)
    return gradient.norm().item()


def main():
    dist.init_process_group("gloo")
    groups = [dist.new_group(), dist.new_group()]
    with ThreadPoolExecutor(max_workers=2) as pool:
        score = pool.submit(evaluate, groups[0])
        norm = pool.submit(train, groups[1], dist.get_rank())
        print(f"rank {dist.get_rank()}: {score.result()} correct, norm {norm.result():.2f}")
    dist.destroy_process_group()


main()
