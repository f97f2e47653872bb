"""The same with rollcall.Trainer: the snapshot also has the position in the data and the random generators."""

import sys

import fsdp_figures
import torch
from fsdp_figures import STEPS, Layers, dataset, loss_of

import rollcall

with rollcall.init() as world:
    figures = fsdp_figures.Figures()
    with torch.device("meta"):
        model = Layers()
    trainer = rollcall.Trainer(
        model,
        lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3),
        loss_of,
        world,
        strategy="fsdp",
        clip_norm=1.0,
        progress=False,
    )
    loader = rollcall.prepare_dataloader(dataset(), world, fsdp_figures.BATCH)
    with figures.timing("steps", STEPS):
        trainer.fit(loader, 1)
    snapshot = rollcall.Snapshot(sys.argv[1], world, trainer.model, trainer.optimizers, loader=loader)
    with figures.timing("save"):
        snapshot.save(trainer.step, 1, wait=True)
    with figures.timing("resume"):
        snapshot.load()
    figures.tell()
