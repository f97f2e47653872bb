"""A DDP training beside other tools that look at it. Arguments: profile, compile; the other tools have variables.

With the argument `plain`, gradients are added up without DDP: torch itself crashes with DDP, gloo and DETAIL.
"""

import sys
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model: Any = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
if "plain" not in sys.argv:
    model = DistributedDataParallel(model)
if "compile" in sys.argv:
    model = torch.compile(model, backend="aot_eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
activities = [torch.profiler.ProfilerActivity.CPU]
with torch.profiler.profile(activities=activities) if "profile" in sys.argv else nullcontext():
    for step in range(5):
        rows = torch.randn(8, 16, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
        optimizer.zero_grad()
        model(rows).square().mean().backward()
        if "plain" in sys.argv:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        optimizer.step()
        total = torch.ones(3)
        dist.all_reduce(total, async_op=True).wait()
print("weights", sum(p.detach().double().sum().item() for p in model.parameters()), total.tolist())
dist.barrier()
dist.destroy_process_group()
