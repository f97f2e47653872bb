"""Each rank builds its vocabulary from its own text, and rank 2's text has a word more.

ranks: 3
kind: ddp-model-mismatch
look at: 2
ends: fails
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

TEXTS = ["one rank waits for one rank", "one rank waits for rank one", "one rank waits for nobody"]


class Tagger(nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.ids = {word: number for number, word in enumerate(vocabulary)}
        self.embed = nn.EmbeddingBag(len(vocabulary), 6)
        self.out = nn.Linear(6, 2)

    def forward(self, text):
        known = [self.ids[word] for word in text.split()]
        return self.out(self.embed(torch.tensor([known])))


def vocabulary_of(texts):
    return sorted({word for text in texts for word in text.split()})


def train(tagger, text):
    model = DistributedDataParallel(tagger)  # GUILTY
    for _ in range(3):
        model(text).square().sum().backward()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    text = TEXTS[dist.get_rank()]
    tagger = Tagger(vocabulary_of([text]))
    train(tagger, text)
    print(f"words {len(tagger.ids)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
