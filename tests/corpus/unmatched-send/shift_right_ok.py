"""Each rank but the last passes its last row to the right neighbour.

ranks: 4
kind: none
ends: ok
"""

import os

import torch
import torch.distributed as dist


class Strip:
    def __init__(self, rows: int, columns: int):
        self.rank = int(os.environ["RANK"])
        self.size = int(os.environ["WORLD_SIZE"])
        self.rows = torch.full((rows, columns), float(self.rank))
        self.above = torch.zeros(columns)

    def exchange(self) -> None:
        pending = []
        if self.rank > 0:
            pending.append(dist.irecv(self.above, src=self.rank - 1))
        if self.rank + 1 < self.size:
            pending.append(dist.isend(self.rows[-1].clone(), dst=self.rank + 1))
        for work in pending:
            work.wait()

    def smooth(self) -> None:
        self.rows[0] = (self.rows[0] + self.above) / 2


def main() -> None:
    dist.init_process_group("gloo")
    strip = Strip(rows=3, columns=5)
    for _ in range(3):
        strip.exchange()
        strip.smooth()
    print(f"rank {strip.rank}: {strip.rows.sum().item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
