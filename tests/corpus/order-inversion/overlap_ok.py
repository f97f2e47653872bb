"""All ranks start the sum of the gradients before the gather of the metrics, then wait for both.

ranks: 3
kind: none
ends: ok
"""

import torch
import torch.distributed as dist


class Overlap:
    """Starts communication early and waits for all of it at the end of the step."""

    def __init__(self):
        self.works = []
        self.metrics = [torch.zeros(3) for _ in range(dist.get_world_size())]

    def send_gradient(self, gradient):
        self.works.append(dist.all_reduce(gradient, async_op=True))

    def send_metrics(self, metrics):
        self.works.append(dist.all_gather(self.metrics, metrics, async_op=True))

    def finish(self):
        while self.works:
            self.works.pop().wait()
        return torch.stack(self.metrics).mean(dim=0)


def train_step(overlap, gradient, metrics, early_metrics):
    if early_metrics:
        overlap.send_metrics(metrics)
    overlap.send_gradient(gradient)
    if not early_metrics:
        overlap.send_metrics(metrics)
    return overlap.finish()


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
overlap = Overlap()
for step in range(2):
    mean = train_step(overlap, torch.randn(10), torch.rand(3), early_metrics=False)
    print(f"rank {rank} step {step}: {mean.tolist()}")
dist.destroy_process_group()
