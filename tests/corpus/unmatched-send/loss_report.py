"""Workers report their loss to rank 0 once a step, and worker 2 reports its first step twice.

ranks: 3
kind: unmatched-send
look at: 2
ends: fails
"""

import torch
import torch.distributed as dist

STEPS = 4


def report(loss):
    dist.send(torch.tensor([loss]), dst=0)  # GUILTY


def work(rank):
    weight = torch.full((4,), float(rank), requires_grad=True)
    for step in range(STEPS):
        loss = (weight - 3).square().sum()
        (grad,) = torch.autograd.grad(loss, weight)
        weight.data -= 0.1 / (step + 1) * grad
        if step == 0 and rank == 2:
            report(loss.item())
        report(loss.item())


def listen(size):
    box = torch.zeros(1)
    for step in range(STEPS):
        losses = []
        for worker in range(1, size):
            dist.recv(box, src=worker)
            losses.append(box.item())
        print(f"step {step}: {losses}")


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0:
        listen(dist.get_world_size())
    else:
        work(rank)
    dist.destroy_process_group()


main()
