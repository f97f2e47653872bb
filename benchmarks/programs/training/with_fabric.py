"""The same with Lightning Fabric."""

import torch
from lightning.fabric import Fabric
from torch.utils.data import DataLoader
from workloads import Turns, chosen

work = chosen()
fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
fabric.launch()
model = work.make_model()
model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=0.001))
loader = fabric.setup_dataloaders(DataLoader(work.make_data(), work.batch_size, shuffle=True))
model.train()
turns = Turns()
for epoch in range(turns.epochs):
    turns.begin()
    loader.sampler.set_epoch(epoch)
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = work.loss(model(inputs), targets)
        fabric.backward(loss)
        optimizer.step()
    turns.end()
