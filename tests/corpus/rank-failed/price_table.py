"""Each rank sums a share of a price table, and the share of rank 1 holds a cell that is no number.

ranks: 3
kind: rank-failed
look at: 1
ends: fails
"""

import csv
import io

import torch
import torch.distributed as dist

TABLE = """item,price
bolt,0.20
nut,n/a
washer,0.05
hinge,2.40
latch,3.10
hook,0.90
"""


def prices(rank, size):
    rows = list(csv.DictReader(io.StringIO(TABLE)))
    for row in rows[rank::size]:
        yield float(row["price"])  # GUILTY


def main():
    dist.init_process_group("gloo")
    mine = sum(prices(dist.get_rank(), dist.get_world_size()))
    total = torch.tensor([mine])
    dist.all_reduce(total)
    print(f"total {total.item():.2f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
