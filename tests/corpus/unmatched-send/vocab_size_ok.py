"""Rank 0 posts the vocabulary's size in the background before the vectors, and rank 1 takes both.

ranks: 2
kind: none
ends: ok
"""

import torch
import torch.distributed as dist

WORDS = ["the", "rank", "that", "waits", "and", "the", "one", "that", "went"]


def share_vectors(words):
    vocabulary = sorted(set(words))
    size = torch.tensor([len(vocabulary)])
    header = dist.isend(size, dst=1, tag=1)
    torch.manual_seed(0)
    vectors = torch.randn(7, 4)
    dist.send(vectors, dst=1, tag=2)
    return vectors, header


def fetch_vectors():
    size = torch.zeros(1, dtype=torch.int64)
    dist.recv(size, src=0, tag=1)
    vectors = torch.empty(int(size), 4)
    dist.recv(vectors, src=0, tag=2)
    return vectors


if __name__ == "__main__":
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        vectors, header = share_vectors(WORDS)
        header.wait()
    else:
        vectors = fetch_vectors()
    norm = vectors.norm()
    dist.all_reduce(norm)
    print(f"norm {norm.item() / 2:.4f}")
    dist.destroy_process_group()
