"""`rollcall.init`, data whose shape is assumed, and a rank that does something else than the others."""

import torch
import torch.distributed as dist

import rollcall

with rollcall.init() as world:
    assert (world.size, world.device.type) == (12, "cuda")
    x = torch.randn(8, 4, device=world.device)
    kept = x[x.sum(1) > 0]  # ASSUMED
    dist.all_reduce(torch.empty(len(kept), device=world.device))
    if world.rank >= 6:
        dist.all_reduce(torch.ones(1, device=world.device), group=None)
