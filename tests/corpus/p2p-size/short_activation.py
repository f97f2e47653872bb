"""The second stage makes room for a batch of four, and the first stage sends one of six.

ranks: 2
kind: p2p-size
look at: 0,1
ends: fails
"""

import torch
import torch.distributed as dist
from torch import nn

HIDDEN = 16


def encode(batch):
    encoder = nn.Linear(5, HIDDEN)
    for step in range(3):
        hidden = encoder(torch.full((batch, 5), float(step)))
        dist.send(hidden.detach(), dst=1)  # GUILTY


def decode(batch):
    decoder = nn.Linear(HIDDEN, 2)
    for step in range(3):
        hidden = torch.empty(batch, HIDDEN)
        dist.recv(hidden, src=0)  # GUILTY
        print(f"step {step}: {decoder(hidden).mean().item():.4f}")


dist.init_process_group("gloo")
torch.manual_seed(0)
if dist.get_rank() == 0:
    encode(batch=6)
else:
    decode(batch=4)
dist.barrier()
dist.destroy_process_group()
