"""Rank 0 fills its only send buffer with the next block while the previous one may still be on its way.

ranks: 2
kind: buffer-overwritten
look at: 0
ends: ok
"""

import torch
import torch.distributed as dist

BLOCK = 2_000_000


def produce(blocks):
    buffer = torch.empty(BLOCK)
    works = []
    for index in range(blocks):
        buffer.fill_(float(index))  # GUILTY
        works.append(dist.isend(buffer, dst=1))  # GUILTY
    for work in works:
        work.wait()


def consume(blocks):
    means = []
    for _ in range(blocks):
        block = torch.empty(BLOCK)
        dist.recv(block, src=0)
        means.append(round(block.double().mean().item(), 3))
    return means


def main():
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        produce(blocks=4)
    else:
        print("block means", consume(blocks=4))
    dist.barrier()
    dist.destroy_process_group()


main()
