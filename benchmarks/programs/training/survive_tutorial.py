"""The tutorial's script for torchrun: rank 0 saves model and epoch with torch.save, all load them when they start.

Its epochs are ten steps long here, so that it saves as often as the other program.
"""

import os

import torch
import torch.distributed as dist
from survive import make_data, make_model, note_step
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset
from torch.utils.data.distributed import DistributedSampler

PATH = "snapshot.pt"

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
data = Subset(make_data(), range(10 * 32 * size))
sampler = DistributedSampler(data)
loader = DataLoader(data, 32, sampler=sampler)
model = make_model()
epochs_run = 0
if os.path.exists(PATH):
    snapshot = torch.load(PATH)
    model.load_state_dict(snapshot["MODEL_STATE"])
    epochs_run = snapshot["EPOCHS_RUN"]
model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
for epoch in range(epochs_run, 1_000_000):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        note_step(rank)
    if rank == 0:
        torch.save({"MODEL_STATE": model.module.state_dict(), "EPOCHS_RUN": epoch}, PATH)
