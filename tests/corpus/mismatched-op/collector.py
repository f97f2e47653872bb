"""Rank 2 is set to share its report with everyone, so it calls all_gather while the others call gather.

ranks: 4
kind: mismatched-op
look at: 2
ends: hangs
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Collector:
    share: bool
    root: int = 0

    def collect(self, report):
        rows = [torch.empty_like(report) for _ in range(dist.get_world_size())]
        if self.share:
            dist.all_gather(rows, report)  # GUILTY
            return torch.stack(rows)
        at_root = dist.get_rank() == self.root
        dist.gather(report, rows if at_root else None, dst=self.root)
        return torch.stack(rows) if at_root else None


def settings_of(rank):
    verbose = {"share": True}
    quiet = {"share": False}
    return verbose if rank == 2 else quiet


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    collector = Collector(**settings_of(rank))
    for step in range(3):
        table = collector.collect(torch.tensor([rank, step, rank * step], dtype=torch.float32))
        if table is not None:
            print(f"rank {rank} step {step}: {table.sum(0).tolist()}")
    dist.destroy_process_group()


main()
