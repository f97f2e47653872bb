"""A small DDP training whose memory and traffic can be computed by hand."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
model = DistributedDataParallel(torch.nn.Linear(1024, 1024, bias=False).cuda(), device_ids=[local_rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for _ in range(3):
    x = torch.ones(256, 1024, device="cuda")
    model(x).sum().backward()  # PEAK
    optimizer.step()
    optimizer.zero_grad()
    print(torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated())
