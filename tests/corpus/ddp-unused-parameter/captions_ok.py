"""All ranks meet batches with pictures.

ranks: 3
kind: none
ends: ok
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Captioner(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.picture = nn.Linear(12, 8)
        self.out = nn.Linear(8, 20)

    def forward(self, words, pictures=None):
        hidden = self.words(words)
        if pictures is not None:
            hidden = hidden + self.picture(pictures)
        return self.out(hidden)


def make_batch(rank, step):
    words = torch.randint(20, (6,))
    pictures = torch.randn(6, 12)
    return {"words": words, "pictures": pictures}


def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(**batch), batch["words"]).backward()
    optimizer.step()


def train(rank, steps):
    torch.manual_seed(rank)
    model = DistributedDataParallel(Captioner())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        train_step(model, optimizer, make_batch(rank, step))
    return model.module.out.weight.norm().item()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    print(f"norm {train(dist.get_rank(), steps=5):.4f}")
    dist.destroy_process_group()
