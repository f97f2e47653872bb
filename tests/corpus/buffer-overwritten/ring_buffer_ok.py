"""Rank 0 waits until a block has left its send buffer before it fills it again.

ranks: 2
kind: none
ends: ok
"""

import torch
import torch.distributed as dist

BLOCK = 2_000_000


def produce(blocks):
    buffer = torch.empty(BLOCK)
    works = []
    for index in range(blocks):
        buffer.fill_(float(index))
        works.append(dist.isend(buffer, dst=1))
        works.pop().wait()
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
