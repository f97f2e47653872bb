"""DDP with a sampler, pinned memory, clipping, a checkpoint of rank 0 that all load, and objects at the end."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
device = torch.device("cuda", local_rank)
data = TensorDataset(torch.randn(96, 16), torch.randint(4, (96,)))
sampler = DistributedSampler(data, shuffle=True)
loader = DataLoader(data, batch_size=4, sampler=sampler, pin_memory=True)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4)).to(device)
ddp = DistributedDataParallel(model, device_ids=[local_rank])
optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = nn.functional.cross_entropy(ddp(x.to(device, non_blocking=True)), y.to(device, non_blocking=True))
        loss.backward()
        nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    total = loss.detach().clone()
    dist.all_reduce(total)
    if rank == 0:
        print(f"epoch {epoch}: {total.item() / world:.3f}")
        torch.save(model.state_dict(), "model.pt")
    dist.barrier()
gathered = [None] * world
dist.all_gather_object(gathered, {"rank": rank, "batches": len(loader)})
dist.destroy_process_group()
