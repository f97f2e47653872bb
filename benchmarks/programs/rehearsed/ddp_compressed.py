"""DDP with gradients compressed to bfloat16 by a communication hook, and buffers that are broadcast."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
device = torch.device("cuda", local_rank)
model = nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.Linear(32, 8)).to(device)
ddp = DistributedDataParallel(model, device_ids=[local_rank])
ddp.register_comm_hook(None, default_hooks.bf16_compress_hook)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
for _ in range(3):
    ddp(torch.randn(4, 32, device=device)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
