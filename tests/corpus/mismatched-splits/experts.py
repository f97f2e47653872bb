"""Rank 1 expects the same number of tokens from each rank, although the routers send different numbers.

ranks: 3
kind: mismatched-splits
look at: 1
ends: fails
"""

import torch
import torch.distributed as dist

ROUTES = torch.tensor([[3, 2, 1], [1, 4, 1], [2, 3, 1]])  # tokens from rank (row) to expert (column)


class ExpertLayer:
    def __init__(self, width, balanced):
        self.width = width
        self.balanced = balanced

    def exchange_counts(self, sent):
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        return received

    def dispatch(self, tokens, sent):
        received = self.exchange_counts(sent)
        if self.balanced:
            received = torch.full_like(sent, tokens.shape[0] // len(sent))
        out = tokens.new_zeros(int(received.sum()), self.width)
        dist.all_to_all_single(out, tokens, received.tolist(), sent.tolist())  # GUILTY
        return out


dist.init_process_group("gloo")
rank = dist.get_rank()
layer = ExpertLayer(width=4, balanced=rank == 1)
tokens = torch.full((6, 4), float(rank))
for _ in range(2):
    mine = layer.dispatch(tokens, ROUTES[rank])
    print(f"expert {rank} works on {mine.shape[0]} tokens, sum {mine.sum()}")
dist.barrier()
dist.destroy_process_group()
