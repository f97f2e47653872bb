"""Rank 0 takes the largest loss of all ranks, the others their sum: functional collectives, and nobody complains.

ranks: 3
kind: mismatched-reduce-op
look at: 0
ends: ok
"""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional


class Metric:
    def __init__(self, name, how):
        self.name, self.how = name, how
        self.values = []

    def update(self, value):
        self.values.append(value)

    def compute(self):
        local = torch.stack(self.values).mean()
        return functional.all_reduce(local, self.how, dist.group.WORLD)  # GUILTY


def make_metrics(is_reporter):
    return [
        Metric("accuracy", "sum"),
        Metric("loss", "max" if is_reporter else "sum"),
    ]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    metrics = make_metrics(is_reporter=rank == 0)
    torch.manual_seed(rank)
    for _ in range(5):
        for metric in metrics:
            metric.update(torch.rand(()))
    results = {metric.name: metric.compute().item() for metric in metrics}  # GUILTY
    print(f"rank {rank}: {results}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
