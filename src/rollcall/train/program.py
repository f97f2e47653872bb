"""What every rank of `rollcall train` runs, under rollcall or any other launcher: a Trainer on the digits."""

import functools
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

import rollcall
from rollcall.train.config import Recipe
from rollcall.train.data import Loader, prepare_dataloader
from rollcall.train.digits import MODELS, accuracy, load_digits
from rollcall.train.early_stopping import EarlyStop
from rollcall.train.trainer import Metrics, Trainer


def run(recipe: Recipe) -> None:
    with rollcall.init() as world:
        rollcall.seed_all(recipe.seed)
        training, testing = load_digits()
        model = MODELS[recipe.model]()
        optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.lr)
        loader = prepare_dataloader(training, world, recipe.batch_size, seed=recipe.seed, uneven=recipe.uneven)
        test_loader = prepare_dataloader(testing, world, 128, shuffle=False)
        trainer = Trainer(
            model,
            optimizer,
            nn.functional.cross_entropy,
            world,
            strategy=recipe.strategy,
            accumulate=recipe.accumulate,
            clip_norm=recipe.clip_norm,
            precision=recipe.precision,
            compile=recipe.compile,
            scheduler=CosineAnnealingLR(optimizer, T_max=recipe.epochs) if recipe.cosine else None,
            snapshots=recipe.snapshots,
            save_every=recipe.save_every,
            keep=recipe.keep,
            early_stop=EarlyStop("val_loss", recipe.patience) if recipe.patience else None,
            evaluate=functools.partial(_test, loader=test_loader),
            log=functools.partial(_say, epochs=recipe.epochs),
        )
        rollcall.seed_all(recipe.seed, per_rank=True)  # the same model everywhere, but not the same dropout
        metrics = trainer.fit(loader, recipe.epochs)
        if world.is_first:
            _close(trainer, metrics, recipe)


def _test(trainer: Trainer, loader: Loader) -> Metrics:
    return trainer.evaluate(loader, accuracy=accuracy)


def _say(record: Any, epochs: int) -> None:
    print(
        f"epoch {record['epoch'] + 1}/{epochs}: loss {record['loss']:.4f} over {record['samples']:,} images, "
        f"{record['val_accuracy']:.1%} of the test images read correctly, {record['samples_per_s']:,.0f} images/s",
        flush=True,
    )


def _close(trainer: Trainer, metrics: Metrics, recipe: Recipe) -> None:
    assert trainer.snapshot is not None
    newest = trainer.snapshot.newest
    if not metrics:
        print(f"all {trainer.epoch} epochs are in {recipe.snapshots} already: ask for more, or use another folder")
    elif newest != trainer.step:
        found = "there is no snapshot" if newest is None else f"the newest snapshot is that of step {newest}"
        print(f"{trainer.step:,} steps done, but not saved: {found}; make room in {recipe.snapshots}, and start again")
    else:
        print(f"{trainer.step:,} steps done; the snapshots and metrics.jsonl are in {recipe.snapshots}")
