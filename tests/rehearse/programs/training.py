"""A DDP training for GPUs. Rank 2 has one batch fewer than the others; the loss is only printed; rank 0 saves."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
device = torch.device("cuda", local_rank)
model = DistributedDataParallel(nn.Linear(8, 4).to(device), device_ids=[local_rank])
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2 if rank == 2 else 3):
    loss = model(torch.randn(5, 8, device=device)).square().mean()  # GUILTY
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"loss {loss.item():.3f}")
if rank == 0:
    torch.save(model.module.state_dict(), "checkpoint.pt")
dist.barrier()
dist.destroy_process_group()
