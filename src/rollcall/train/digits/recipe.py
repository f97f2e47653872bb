"""The recipe of `rollcall train` without one of the user's: handwritten digits."""

from collections.abc import Mapping
from typing import Any

import torch

from rollcall.train.digits.dataset import load_train_and_test
from rollcall.train.digits.models import MODELS, accuracy
from rollcall.train.recipes.config import TrainConfig
from rollcall.train.recipes.recipe import Recipe


def make_recipe(config: TrainConfig) -> Recipe:
    train_data, test_data = load_train_and_test()
    model = MODELS[config.model]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr)
    return Recipe(model, optimizer, train_data, test_data, measures={"accuracy": accuracy}, describe=_describe_epoch)


def _describe_epoch(record: Mapping[str, Any], epochs: int) -> str:
    return (
        f"epoch {record['epoch'] + 1}/{epochs}: loss {record['loss']:.4f} over {record['samples']:,} images, "
        f"{record['val_accuracy']:.1%} of the test images read correctly, {record['samples_per_s']:,.0f} images/s"
    )
