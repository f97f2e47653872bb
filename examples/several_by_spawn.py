"""python examples/several_by_spawn.py --ranks 2 --epochs 3

The same on several ranks of this machine, started from Python: `rollcall.spawn` calls a function on each rank. The
lines that differ from one_device.py are those about ranks.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import rollcall


def train(epochs: int, batch_size: int) -> float:
    with rollcall.init() as world:
        rollcall.seed_all(0)
        digits = load_digits()
        data = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))
        loader = rollcall.prepare_dataloader(data, world, batch_size)
        model = rollcall.wrap(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)), world)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
        for epoch in range(epochs):
            loader.set_epoch(epoch)
            for images, labels in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(images.to(world.device)), labels.to(world.device))
                (loss * loader.weight).backward()
                optimizer.step()
            if world.is_first:
                print(f"epoch {epoch}: {len(loader)} steps, last loss on rank 0 {loss.item():.3f}", flush=True)
        return loss.item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=torch.cuda.device_count() or 2)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32)
    options = parser.parse_args()
    losses = rollcall.spawn(train, options.ranks, (options.epochs, options.batch_size))
    print(f"the last losses of the {options.ranks} ranks: {', '.join(f'{loss:.3f}' for loss in losses)}")
