"""Rank 1 has the older version of a loss, which sums its embeddings where the others gather them.

ranks: 3
kind: mismatched-op
look at: 1
ends: hangs
"""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as with_gradient
from torch import nn


def gather(features):
    return torch.cat(with_gradient.all_gather(features))  # GUILTY


def pool(features):
    return with_gradient.all_reduce(features.clone())  # GUILTY


class ContrastiveLoss(nn.Module):
    def __init__(self, combine):
        super().__init__()
        self.combine = combine

    def forward(self, images, texts):
        everyone = self.combine(texts)  # GUILTY
        logits = images @ everyone.T
        return nn.functional.cross_entropy(logits, torch.arange(len(images)))


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = nn.Linear(10, 4), nn.Linear(6, 4)

    def forward(self, images, words):
        return self.image(images), self.text(words)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    towers = Towers()
    combine = {"new": gather, "old": pool}["old" if dist.get_rank() == 1 else "new"]
    loss = ContrastiveLoss(combine)
    for step in range(3):
        value = loss(*towers(torch.randn(5, 10), torch.randn(5, 6)))  # GUILTY
        value.backward()
        print(f"step {step}: {value.item():.3f}")
    dist.destroy_process_group()


main()
