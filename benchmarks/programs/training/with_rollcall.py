"""The same with rollcall.Trainer."""

from typing import Any

import torch
from workloads import Turns, chosen

import rollcall

work = chosen()
with rollcall.init() as world:
    model = work.make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    turns = Turns()

    def take_turns(trainer: rollcall.Trainer, _metrics: Any) -> None:
        turns.end()
        if trainer.epoch + 1 < turns.epochs:
            turns.begin()

    trainer = rollcall.Trainer(model, optimizer, work.loss, world, on_epoch_end=take_turns, progress=False)
    loader = rollcall.prepare_dataloader(work.make_data(), world, work.batch_size)
    turns.begin()
    trainer.fit(loader, turns.epochs)
