"""The same with Accelerate."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from workloads import Turns, chosen

work = chosen()
accelerator = Accelerator(cpu=True)
model = work.make_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
loader = DataLoader(work.make_data(), work.batch_size, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
model.train()
turns = Turns()
for _epoch in range(turns.epochs):
    turns.begin()
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = work.loss(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
    turns.end()
accelerator.end_training()
