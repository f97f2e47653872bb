"""DDP that averages gradients in every third step only, in small buckets."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
device = torch.device("cuda", local_rank)
model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(6)]).to(device)
ddp = DistributedDataParallel(model, device_ids=[local_rank], bucket_cap_mb=0.02)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
for step in range(6):
    is_last = step % 3 == 2
    with torch.enable_grad() if is_last else ddp.no_sync():
        ddp(torch.randn(4, 64, device=device)).square().mean().backward()
    if is_last:
        optimizer.step()
        optimizer.zero_grad()
dist.destroy_process_group()
