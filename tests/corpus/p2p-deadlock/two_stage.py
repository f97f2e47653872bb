"""The first stage wants a gradient after one microbatch, the last stage wants two microbatches before it gives one.

ranks: 2
kind: p2p-deadlock
look at: 0,1
ends: hangs
"""

import torch
import torch.distributed as dist
from torch import nn

MICROBATCHES, WIDTH = 4, 8


def first_stage(layer, in_flight):
    waiting = []
    for _ in range(MICROBATCHES):
        hidden = layer(torch.randn(2, WIDTH))
        dist.send(hidden.detach(), dst=1)
        waiting.append(hidden)
        if len(waiting) == in_flight:
            take_gradients(waiting)
    take_gradients(waiting)


def take_gradients(waiting):
    while waiting:
        hidden = waiting.pop(0)
        grad = torch.empty_like(hidden)
        dist.recv(grad, src=1)  # GUILTY
        hidden.backward(grad)


def last_stage(layer, in_flight):
    for _ in range(MICROBATCHES // in_flight):
        arrived = [torch.empty(2, WIDTH) for _ in range(in_flight)]
        for hidden in arrived:
            dist.recv(hidden, src=0)  # GUILTY
        for hidden in arrived:
            hidden.requires_grad_()
            layer(hidden).square().mean().backward()
            dist.send(hidden.grad, dst=0)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    stage = nn.Linear(WIDTH, WIDTH)
    if dist.get_rank() == 0:
        first_stage(stage, in_flight=1)
    else:
        last_stage(stage, in_flight=2)
    print(f"grad norm {stage.weight.grad.norm().item():.4f}")
    dist.destroy_process_group()
