"""Neighbours exchange the edges of a grid; then the network of the last of three hosts is cut.

ranks: 6
hosts: 3, virtual
cut: host-3
kind: network-cut
look at: 4,5
ends: hangs
"""

import time

import torch
import torch.distributed as dist


class Strip:
    """A strip of a grid, with a row of each neighbour above and below."""

    def __init__(self, rank, size):
        self.above, self.below = (rank - 1) % size, (rank + 1) % size
        self.cells = torch.zeros(10, 64)
        self.cells[1:-1] = float(rank)

    def exchange(self):
        ops = [
            dist.P2POp(dist.isend, self.cells[1].clone(), self.above, tag=1),
            dist.P2POp(dist.isend, self.cells[-2].clone(), self.below, tag=2),
            dist.P2POp(dist.irecv, self.cells[-1], self.below, tag=1),
            dist.P2POp(dist.irecv, self.cells[0], self.above, tag=2),
        ]
        for work in dist.batch_isend_irecv(ops):  # GUILTY
            work.wait()  # GUILTY

    def relax(self):
        inner = self.cells[1:-1]
        inner += 0.2 * (self.cells[:-2] + self.cells[2:] - 2 * inner)


def main(rounds):
    dist.init_process_group("gloo")
    strip = Strip(dist.get_rank(), dist.get_world_size())
    for number in range(rounds):
        strip.exchange()  # GUILTY
        strip.relax()
        if number % 10 == 0:
            print(f"round {number}: {strip.cells.mean():.3f}", flush=True)
        time.sleep(0.01)  # more physics
    dist.destroy_process_group()


main(rounds=3000)
