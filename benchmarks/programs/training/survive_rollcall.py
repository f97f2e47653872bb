"""rollcall.Trainer with a snapshot every ten steps, until a rank is killed; a later attempt takes a few steps."""

import torch
from survive import make_data, make_model, note_step
from torch import nn

import rollcall

with rollcall.init() as world:
    rollcall.seed_all(0)
    model = make_model()
    trainer = rollcall.Trainer(
        model,
        torch.optim.AdamW(model.parameters(), lr=0.001),
        nn.functional.cross_entropy,
        world,
        snapshots="snapshots",
        save_every="10 steps",
        progress=False,
    )
    # After each step, as the other program: the hook is the optimizer's own.
    trainer.optimizer.register_step_post_hook(lambda *_: note_step(world.rank))
    trainer.fit(rollcall.prepare_dataloader(make_data(), world, 32), 100_000)
