"""All ranks have documents of the same length.

ranks: 3
kind: none
ends: ok
"""

from collections import Counter

import torch
import torch.distributed as dist

PAGES = {0: 40, 1: 40, 2: 40}
SENTENCE = "the quick brown fox jumps over the lazy dog and runs into the dark wood "


def documents(rank, count):
    for _ in range(count):
        yield SENTENCE * 20 * PAGES[rank]


def count_words(text):
    counts = Counter()
    for word in text.split():
        counts[word.strip(".,")] += 1
    return counts


class Vocabulary:
    def __init__(self, words):
        self.words = words
        self.totals = torch.zeros(len(words))

    def add(self, text):
        counts = count_words(text)
        vector = torch.tensor([float(counts[word]) for word in self.words])
        dist.all_reduce(vector)
        self.totals += vector


dist.init_process_group("gloo")
vocabulary = Vocabulary(["the", "fox", "dog", "wood"])
for text in documents(dist.get_rank(), count=20):
    vocabulary.add(text)
if dist.get_rank() == 0:
    print(vocabulary.totals.tolist())
dist.destroy_process_group()
