"""What every rank of `rollcall train` runs, under rollcall or any other launcher."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, IterableDataset

import rollcall
from rollcall.train.consensus import fail_if_any
from rollcall.train.data import prepare_dataloader
from rollcall.train.early_stopping import EarlyStop
from rollcall.train.recipes.config import TrainConfig
from rollcall.train.recipes.find import find_function
from rollcall.train.recipes.recipe import Recipe, as_recipe
from rollcall.train.trainer import Metrics, Trainer
from rollcall.world import World


def run(config: TrainConfig) -> None:
    with rollcall.init() as world:
        rollcall.seed_all(config.seed)
        recipe = _make_recipe(config, world)
        trainer = Trainer(recipe.model, recipe.optimizer, recipe.loss, world, **_options(config, recipe, world))
        rollcall.seed_all(config.seed, per_rank=True)  # all ranks start with the same model, but differ in dropout
        metrics = trainer.fit(_loader(recipe.data, config, world), config.epochs)
        if world.is_first:
            print(_summarize(trainer, metrics, config.snapshots))


def _make_recipe(config: TrainConfig, world: World) -> Recipe:
    """All ranks end together if one of them cannot make it."""
    made: Recipe | str
    try:
        made = as_recipe(_function(config)(config))
    except rollcall.UsageError as error:
        made = str(error)
    fail_if_any(world, f"recipe {config.recipe}: {made}" if isinstance(made, str) else None)
    assert isinstance(made, Recipe)
    return made


def _function(config: TrainConfig) -> Callable[[TrainConfig], Any]:
    if config.recipe:
        return find_function(config.recipe)
    from rollcall.train.digits.recipe import make_recipe  # late: it imports scikit-learn

    return make_recipe


def _options(config: TrainConfig, recipe: Recipe, world: World) -> dict[str, Any]:
    test = None
    if recipe.test_data is not None:
        loader = _loader(recipe.test_data, config, world, shuffle=False)
        test = functools.partial(_evaluate, loader=loader, measures=recipe.measures)
    return {
        "strategy": config.strategy,
        "accumulate": config.accumulate,
        "clip_norm": config.clip_norm,
        "precision": config.precision,
        "compile": config.compile,
        "scheduler": functools.partial(CosineAnnealingLR, T_max=config.epochs) if config.cosine else None,
        "snapshots": config.snapshots,
        "save_every": config.save_every,
        "keep": config.keep,
        "keep_every": config.keep_every or None,
        "upload": config.upload or None,
        "ema": config.ema,
        "early_stop": EarlyStop("val_loss" if test else "loss", config.patience) if config.patience else None,
        "evaluate": test,
        "log": functools.partial(_print_epoch, epochs=config.epochs, describe=recipe.describe or _describe_epoch),
        "config": asdict(config),
        **recipe.options,
    }


def _loader(data: Any, config: TrainConfig, world: World, shuffle: bool = True) -> Any:
    """A dataset with a length is distributed here; a loader, or a dataset without a length, distributes itself."""
    if isinstance(data, IterableDataset):
        return DataLoader(data, config.batch_size)
    if not hasattr(data, "__getitem__"):
        return data
    return prepare_dataloader(
        data, world, config.batch_size, shuffle=shuffle, seed=config.seed, uneven=config.uneven if shuffle else "weigh"
    )


def _evaluate(trainer: Trainer, loader: Any, measures: Mapping[str, Any]) -> Metrics:
    return trainer.evaluate(loader, **measures)


def _print_epoch(record: Any, epochs: int, describe: Callable[[Mapping[str, Any], int], str]) -> None:
    if record["event"] == "epoch":
        print(describe(record, epochs), flush=True)


def _describe_epoch(record: Mapping[str, Any], epochs: int) -> str:
    shown = {name: record[name] for name in record if name.startswith("val_") or name in ("tokens_per_s", "mfu")}
    more = "".join(f", {name} {value:,.4g}" for name, value in shown.items())
    return (
        f"epoch {record['epoch'] + 1}/{epochs}: loss {record['loss']:.4f} over {record['samples']:,} samples{more}, "
        f"{record['samples_per_s']:,.0f} samples/s"
    )


def _summarize(trainer: Trainer, metrics: Metrics, folder: str) -> str:
    assert trainer.snapshot is not None
    if not metrics:
        return f"{folder} already contains all {trainer.epoch} epochs: use a larger --epochs or another --snapshots"
    if trainer.snapshot.newest != trainer.step:
        found = trainer.snapshot.newest_in_words
        return f"{trainer.step:,} steps done, but not saved: {found}; free some space in {folder} and start again"
    return f"{trainer.step:,} steps done; snapshots and metrics.jsonl are in {folder}"
