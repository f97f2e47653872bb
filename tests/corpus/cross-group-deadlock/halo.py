"""On a ring each rank first meets its left neighbour in their common group, so each waits for the next and none begins.

ranks: 3
kind: cross-group-deadlock
look at: 0,1,2
ends: hangs
"""

import torch
import torch.distributed as dist


class Ring:
    """Cells on a ring; each pair of neighbours has a group for the edge between them."""

    def __init__(self):
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.edges = [dist.new_group([i, (i + 1) % self.size]) for i in range(self.size)]

    def edge_order(self):
        left, right = self.edges[self.rank - 1], self.edges[self.rank]
        return [left, right]

    def exchange(self, cell):
        flux = torch.zeros(())
        for edge in self.edge_order():
            shared = cell.clone()
            dist.all_reduce(shared, group=edge)  # GUILTY
            flux += shared / 2 - cell
        return flux


def main():
    dist.init_process_group("gloo")
    ring = Ring()
    cell = torch.tensor(float(ring.rank))
    for _ in range(5):
        cell += 0.5 * ring.exchange(cell)
    print(f"cell {ring.rank}: {cell:.4f}")
    dist.destroy_process_group()


main()
