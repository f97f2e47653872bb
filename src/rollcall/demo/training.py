"""DDP in thirty lines: each rank trains on its part of the digits, and all end with the same weights."""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import rollcall

EPOCHS = 5

with rollcall.init() as world:
    rollcall.seed_all(0)
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    data = TensorDataset(images, torch.tensor(digits.target))
    sampler: DistributedSampler[object] = DistributedSampler(data, world.size, world.rank)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        total = torch.zeros(2)
        for batch, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(batch), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += torch.tensor([loss.item() * len(labels), len(labels)])
        dist.all_reduce(total)
        if world.is_first:
            print(f"epoch {epoch}: loss {total[0] / total[1]:.3f} over {int(total[1])} images")
    with torch.no_grad():
        right = (model(images).argmax(1) == data.tensors[1]).float().mean().item()
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    gathered = [torch.empty_like(weights) for _ in range(world.size)]
    dist.all_gather(gathered, weights)
    if world.is_first:
        same = all(torch.equal(weights, other) for other in gathered)
        print(f"{right:.1%} of the digits read correctly; weights equal on all {world.size} ranks: {same}")
