"""What every rank of `rollcall train` runs, under rollcall or any other launcher."""

import functools
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

import rollcall
from rollcall.train.data import Loader, prepare_dataloader
from rollcall.train.digits.config import TrainConfig
from rollcall.train.digits.dataset import load_train_and_test
from rollcall.train.digits.models import MODELS, accuracy
from rollcall.train.early_stopping import EarlyStop
from rollcall.train.trainer import Metrics, Trainer


def run(config: TrainConfig) -> None:
    with rollcall.init() as world:
        rollcall.seed_all(config.seed)
        train_data, test_data = load_train_and_test()
        model = MODELS[config.model]()
        optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr)
        loader = prepare_dataloader(train_data, world, config.batch_size, seed=config.seed, uneven=config.uneven)
        test_loader = prepare_dataloader(test_data, world, 128, shuffle=False)
        trainer = Trainer(
            model,
            optimizer,
            nn.functional.cross_entropy,
            world,
            strategy=config.strategy,
            accumulate=config.accumulate,
            clip_norm=config.clip_norm,
            precision=config.precision,
            compile=config.compile,
            scheduler=CosineAnnealingLR(optimizer, T_max=config.epochs) if config.cosine else None,
            snapshots=config.snapshots,
            save_every=config.save_every,
            keep=config.keep,
            early_stop=EarlyStop("val_loss", config.patience) if config.patience else None,
            evaluate=functools.partial(_evaluate, loader=test_loader),
            log=functools.partial(_print_epoch, epochs=config.epochs),
        )
        rollcall.seed_all(config.seed, per_rank=True)  # all ranks start with the same model, but differ in dropout
        metrics = trainer.fit(loader, config.epochs)
        if world.is_first:
            print(_summarize(trainer, metrics, config.snapshots))


def _evaluate(trainer: Trainer, loader: Loader) -> Metrics:
    return trainer.evaluate(loader, accuracy=accuracy)


def _print_epoch(record: Any, epochs: int) -> None:
    print(
        f"epoch {record['epoch'] + 1}/{epochs}: loss {record['loss']:.4f} over {record['samples']:,} images, "
        f"{record['val_accuracy']:.1%} of the test images read correctly, {record['samples_per_s']:,.0f} images/s",
        flush=True,
    )


def _summarize(trainer: Trainer, metrics: Metrics, folder: str) -> str:
    assert trainer.snapshot is not None
    newest = trainer.snapshot.newest
    if not metrics:
        return f"{folder} already contains all {trainer.epoch} epochs: use a larger --epochs or another --snapshots"
    if newest != trainer.step:
        found = "there is no snapshot" if newest is None else f"the newest snapshot is that of step {newest}"
        return f"{trainer.step:,} steps done, but not saved: {found}; free some space in {folder} and start again"
    return f"{trainer.step:,} steps done; snapshots and metrics.jsonl are in {folder}"
