"""All ranks take the gradient channel before the metrics channel.

ranks: 3
kind: none
ends: ok
"""

import torch
import torch.distributed as dist


class Channel:
    def __init__(self, name):
        self.name = name
        self.group = dist.new_group()

    def mean(self, tensor):
        dist.all_reduce(tensor, group=self.group)
        return tensor / dist.get_world_size(self.group)


def step(grads, metrics, gradient, loss, log_first):
    if log_first:
        loss = metrics.mean(loss)
        gradient = grads.mean(gradient)
    else:
        gradient = grads.mean(gradient)
        loss = metrics.mean(loss)
    return gradient, loss


def main():
    dist.init_process_group("gloo")
    grads, metrics = Channel("grads"), Channel("metrics")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    for number in range(3):
        gradient, loss = step(grads, metrics, torch.randn(16), torch.rand(1), log_first=False)
        print(f"rank {rank} step {number}: {gradient.norm():.3f} {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
