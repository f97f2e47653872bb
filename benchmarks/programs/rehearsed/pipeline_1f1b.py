"""torch's pipelining: one stage a rank, the schedule 1F1B."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
device = torch.device("cuda", local_rank)
stage = PipelineStage(nn.Linear(16, 16).to(device), rank, world, device)
schedule = Schedule1F1B(stage, n_microbatches=world, loss_fn=nn.functional.mse_loss)
optimizer = torch.optim.SGD(stage.submod.parameters(), lr=0.1)
for _ in range(2):
    x, y = torch.randn(2 * world, 16, device=device), torch.randn(2 * world, 16, device=device)
    if rank == 0:
        schedule.step(x)
    elif rank == world - 1:
        schedule.step(target=y)
    else:
        schedule.step()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
