"""rollcall run --hosts alpha:3,beta:3 examples/several_hosts.py --epochs 10

The same with a Trainer, in twenty lines, on any number of hosts: the program does not depend on it. To try it on this
machine: `rollcall run --virtual-hosts 2 -n 1 …`; with SLURM: `rollcall run --slurm --nodes 2 …`.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import rollcall

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--save-every", default="1 epoch")
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--folder", default="snapshots", help="must be shared by all hosts")
options = parser.parse_args()

with rollcall.init() as world:
    rollcall.seed_all(0)
    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    trainer = rollcall.Trainer(
        model,
        torch.optim.AdamW(model.parameters(), lr=0.003),
        nn.functional.cross_entropy,
        world,
        snapshots=options.folder,
        save_every=options.save_every,
        log=lambda record: print(f"epoch {record['epoch']}: loss {record['loss']:.3f}", flush=True),
    )
    trainer.fit(rollcall.prepare_dataloader(data, world, options.batch_size), options.epochs)
