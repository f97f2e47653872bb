"""On a ring rank 0 meets its right neighbour first, so the chain of waits has an end.

ranks: 3
kind: none
ends: ok
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
        return [right, left] if self.rank == 0 else [left, right]

    def exchange(self, cell):
        flux = torch.zeros(())
        for edge in self.edge_order():
            shared = cell.clone()
            dist.all_reduce(shared, group=edge)
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
