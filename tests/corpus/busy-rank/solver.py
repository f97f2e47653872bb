"""The numbers of rank 1 are so large that float32 cannot meet the tolerance: its bisection never ends.

ranks: 3
kind: busy-rank
look at: 1
ends: hangs
"""

import torch
import torch.distributed as dist

TARGETS = {0: 2.0, 1: 4.0e9, 2: 3.0}
TOLERANCE = 1e-3


def square_root(target):
    low, high = torch.zeros(()), torch.tensor(target)
    while high - low > TOLERANCE:  # GUILTY
        middle = (low + high) / 2  # GUILTY
        if middle * middle > target:  # GUILTY
            high = middle  # GUILTY
        else:
            low = middle  # GUILTY
    return high


def main():
    dist.init_process_group("gloo")
    root = square_root(TARGETS[dist.get_rank()])
    dist.all_reduce(root, op=dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        print(f"largest root {root:.3f}")
    dist.destroy_process_group()


main()
