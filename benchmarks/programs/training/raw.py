"""The loop of the DDP tutorials."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from workloads import Turns, chosen

work = chosen()
dist.init_process_group("gloo")
data = work.make_data()
sampler = DistributedSampler(data)
loader = DataLoader(data, work.batch_size, sampler=sampler)
model = DistributedDataParallel(work.make_model())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
model.train()
turns = Turns()
for epoch in range(turns.epochs):
    turns.begin()
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = work.loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
    turns.end()
dist.destroy_process_group()
