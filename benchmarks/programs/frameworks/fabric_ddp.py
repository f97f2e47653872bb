"""The same model trained by Lightning Fabric."""

import torch
from lightning.fabric import Fabric, seed_everything
from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset

fabric = Fabric(accelerator="cpu", strategy="ddp", devices=2)
fabric.launch()
seed_everything(0, verbose=False)
model = BoringModel()
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
loader = fabric.setup_dataloaders(torch.utils.data.DataLoader(RandomDataset(32, 64), batch_size=4))
for batch in loader:
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    fabric.backward(loss)
    optimizer.step()
print("mean loss", fabric.all_reduce(loss.detach()).item())
print("weights", sum(p.detach().double().sum().item() for p in model.parameters()))
fabric.barrier()
