"""The same with rollcall.Trainer."""

import torch
from workloads import Stopwatch, chosen

import rollcall

work = chosen()
with rollcall.init() as world:
    model = work.make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    watch = Stopwatch()
    trainer = rollcall.Trainer(
        model, optimizer, work.loss, world, on_epoch_end=lambda _trainer, _metrics: watch.lap(), progress=False
    )
    trainer.fit(rollcall.prepare_dataloader(work.make_data(), world, work.batch_size), work.epochs)
    if world.is_first:
        watch.write()
