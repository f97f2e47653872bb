"""The numbers of all ranks are small enough for the tolerance, so that each bisection ends.

ranks: 3
kind: none
ends: ok
"""

import torch
import torch.distributed as dist

TARGETS = {0: 2.0, 1: 4.0, 2: 3.0}
TOLERANCE = 1e-3


def square_root(target):
    low, high = torch.zeros(()), torch.tensor(target)
    while high - low > TOLERANCE:
        middle = (low + high) / 2
        if middle * middle > target:
            high = middle
        else:
            low = middle
    return high


def main():
    dist.init_process_group("gloo")
    root = square_root(TARGETS[dist.get_rank()])
    dist.all_reduce(root, op=dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        print(f"largest root {root:.3f}")
    dist.destroy_process_group()


main()
