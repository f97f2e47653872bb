"""Rank 0 deals out equal chunks, and rank 2 believes that the last one holds the remainder as well.

ranks: 3
kind: p2p-size
look at: 2
ends: ok
"""

import torch
import torch.distributed as dist


class Dealer:
    """Deals a table's rows out to all ranks, from rank 0."""

    def __init__(self, rows: int):
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.rows = rows
        self.share = rows // self.size

    def my_rows(self) -> int:
        if self.rank == self.size - 1:
            return self.share + self.rows % self.size
        return self.share

    def deal(self) -> torch.Tensor:
        table = torch.arange(self.rows * 2, dtype=torch.float32).reshape(self.rows, 2)
        for rank in range(1, self.size):
            dist.send(table[rank * self.share : (rank + 1) * self.share], dst=rank)
        return table[: self.share]

    def take(self) -> torch.Tensor:
        mine = torch.zeros(self.my_rows(), 2)
        dist.recv(mine, src=0)  # GUILTY
        return mine


def main() -> None:
    dist.init_process_group("gloo")
    dealer = Dealer(rows=11)
    mine = dealer.deal() if dealer.rank == 0 else dealer.take()
    total = mine.sum()
    dist.all_reduce(total)
    print(f"rank {dealer.rank}: mine {mine.sum().item()}, all {total.item()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
