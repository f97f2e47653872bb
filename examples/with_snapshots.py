"""rollcall run -n 2 --max-restarts 3 examples/with_snapshots.py --epochs 10

A loop of your own that continues after an interruption. The snapshot contains the whole state of the training, so a
killed rank costs only the steps since the last snapshot. Kill a rank, or the whole run, and start it again.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import rollcall

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--save-every", type=int, default=20, metavar="STEPS")
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--folder", default="snapshots")
options = parser.parse_args()

with rollcall.init() as world:
    rollcall.seed_all(0)
    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))
    loader = rollcall.prepare_dataloader(data, world, options.batch_size)
    model = rollcall.wrap(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)), world)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    with rollcall.Snapshot(options.folder, world, model, optimizer, loader=loader) as snapshot:
        progress = snapshot.load()
        step = progress.step
        for epoch in range(progress.epoch, options.epochs):
            loader.set_epoch(epoch)
            for images, labels in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(images.to(world.device)), labels.to(world.device))
                (loss * loader.weight).backward()
                optimizer.step()
                step += 1
                if step % options.save_every == 0:
                    snapshot.save(step, epoch)  # written in the background, while training continues
            if world.is_first:
                print(f"epoch {epoch} is done: {step} steps", flush=True)
        snapshot.save(step, options.epochs)
