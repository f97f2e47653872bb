"""The loop of the DDP tutorials."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from workloads import Stopwatch, chosen

work = chosen()
dist.init_process_group("gloo")
data = work.make_data()
sampler = DistributedSampler(data)
loader = DataLoader(data, work.batch_size, sampler=sampler)
model = DistributedDataParallel(work.make_model())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
model.train()
watch = Stopwatch()
for epoch in range(work.epochs):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = work.loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
    watch.lap()
if dist.get_rank() == 0:
    watch.write()
dist.destroy_process_group()
