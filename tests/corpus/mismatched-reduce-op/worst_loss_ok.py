"""All ranks ask for the maximum of the losses.

ranks: 3
kind: none
ends: ok
"""

import torch
import torch.distributed as dist


def combine(losses):
    if dist.get_rank() == 0:
        dist.all_reduce(losses, op=dist.ReduceOp.MAX)
    else:
        dist.all_reduce(losses, op=dist.ReduceOp.MAX)
    return losses


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    for epoch in range(3):
        per_class = torch.rand(6) / (epoch + 1)
        worst = combine(per_class)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: worst loss by class {worst.tolist()}")
    dist.destroy_process_group()


main()
