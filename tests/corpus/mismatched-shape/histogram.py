"""The labels of rank 1 lack the highest class, so its histogram is shorter than the one of the others.

ranks: 3
kind: mismatched-shape
look at: 1
ends: fails
"""

import torch
import torch.distributed as dist

CLASSES = 6
LABELS = {
    0: [0, 1, 5, 5, 2, 3, 4, 4],
    1: [0, 0, 1, 2, 3, 3, 2, 1],
    2: [5, 4, 3, 2, 1, 0, 0, 5],
}


def class_weights(labels):
    """Inverse frequency of each class over the data of all ranks."""
    counts = torch.bincount(labels, minlength=1).float()
    dist.all_reduce(counts)  # GUILTY
    return counts.sum() / (CLASSES * counts.clamp(min=1))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    weights = class_weights(torch.tensor(LABELS[dist.get_rank()]))
    print([round(weight, 3) for weight in weights.tolist()])
    dist.destroy_process_group()
