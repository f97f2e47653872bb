"""Two halves of a heated rod each wait for the other's edge before giving their own.

ranks: 2
kind: p2p-deadlock
look at: 0,1
ends: hangs
"""

import torch
import torch.distributed as dist


class Rod:
    """One rank's piece of the rod, with a ghost cell at the side of the neighbour."""

    def __init__(self, cells, rank):
        self.rank, self.neighbour = rank, 1 - rank
        self.heat = torch.zeros(cells)
        self.heat[0 if rank == 0 else -1] = 100.0
        self.ghost = torch.zeros(1)

    def edge(self):
        return self.heat[-1:].clone() if self.rank == 0 else self.heat[:1].clone()

    def swap_edges(self):
        dist.recv(self.ghost, src=self.neighbour)  # GUILTY
        dist.send(self.edge(), dst=self.neighbour)

    def step(self, rate=0.1):
        self.swap_edges()
        cells = [self.heat, self.ghost] if self.rank == 0 else [self.ghost, self.heat]
        line = torch.cat(cells)
        line[1:-1] += rate * (line[2:] - 2 * line[1:-1] + line[:-2])
        self.heat = line[:-1].clone() if self.rank == 0 else line[1:].clone()


def main():
    dist.init_process_group("gloo")
    rod = Rod(cells=16, rank=dist.get_rank())
    for _ in range(5):
        rod.step()
    print(f"mean heat {rod.heat.mean().item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
