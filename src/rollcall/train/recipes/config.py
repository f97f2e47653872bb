"""The options of a `rollcall train`: read from the command line by the launcher, handed to each rank as arguments."""

import argparse
import math
from collections.abc import Sequence
from dataclasses import Field, dataclass, field, fields
from importlib.util import find_spec
from typing import Any, Literal

from rollcall.errors import UsageError
from rollcall.train.recipes.find import check_name
from rollcall.train.save_interval import SaveInterval


def _option(default: Any, help_text: str, *choices: str, least: float | None = None, kind: type = str) -> Any:
    kind = kind if default is None else type(default)
    return field(default=default, metadata={"help": help_text, "choices": choices, "least": least, "kind": kind})


@dataclass(frozen=True)
class TrainConfig:
    recipe: str = _option("", "MODULE:FUNCTION that returns model, optimizer and data. Default: handwritten digits.")
    model: str = _option("mlp", "The model for the digits: mlp or cnn.", "mlp", "cnn")
    epochs: int = _option(10, "Number of epochs in total, including those before an interruption.", least=1)
    batch_size: int = _option(32, "Samples per batch on each rank.", least=1)
    lr: float = _option(0.003, "Learning rate.", least=0)
    seed: int = _option(0, "Seed of the random generators.", least=0)
    strategy: Literal["ddp", "fsdp", "hsdp", "none"] = _option(
        "ddp", "How the ranks share the model: ddp, fsdp, hsdp or none.", "ddp", "fsdp", "hsdp", "none"
    )
    accumulate: int = _option(1, "Batches per optimizer step.", least=1)
    clip_norm: float | None = _option(None, "Largest norm of the gradients. Default: no limit.", kind=float)
    precision: Literal["fp32", "bf16", "fp16"] = _option(
        "fp32", "fp32, or autocast to bf16 or fp16.", "fp32", "bf16", "fp16"
    )
    compile: bool = _option(False, "Use torch.compile.")
    cosine: bool = _option(False, "Lower the learning rate along a cosine.")
    uneven: Literal["weigh", "drop"] = _option(
        "weigh", "Samples that do not fill the last batch on all ranks: weigh or drop them.", "weigh", "drop"
    )
    patience: int = _option(0, "Stop after N epochs without a lower test loss. 0: never.", least=0)
    snapshots: str = _option("snapshots", "Folder to save snapshots to, and to continue from.")
    save_every: str = _option("1", "Save a snapshot every N epochs; also 500steps or 10min.")
    keep: int = _option(3, "Number of snapshots to keep.", least=1)
    keep_every: int = _option(0, "Also keep every N-th snapshot. 0: none.", least=0)
    upload: str = _option("", "Copy each snapshot to this folder too, such as a mounted bucket.")
    ema: float | None = _option(None, "Keep a moving average of the weights with this decay.", kind=float)

    def check(self) -> None:
        """Raise UsageError for a value that cannot work, before a rank starts."""
        for option in fields(self):
            value, choices, least = getattr(self, option.name), option.metadata["choices"], option.metadata["least"]
            if choices and value not in choices:
                raise UsageError(f"{flag(option)} {value} is not known: use {', '.join(choices)}")
            if least is not None and not least <= value < math.inf:  # NaN fails both comparisons
                raise UsageError(f"{flag(option)} {value} is not possible: use a number of at least {least}")
        if self.clip_norm is not None and not 0 < self.clip_norm < math.inf:
            raise UsageError(f"--clip-norm {self.clip_norm} is not possible: use a number above 0")
        if self.ema is not None and not 0 < self.ema < 1:
            raise UsageError(f"--ema {self.ema} is not possible: use a number between 0 and 1, such as 0.999")
        if self.recipe and self.model != "mlp":
            raise UsageError(f"--model {self.model} is for the digits: leave it out with a recipe")
        SaveInterval.parse(self.save_every)

    def check_source(self) -> None:
        """Raise UsageError if the recipe, or what the digits need, is not on this machine."""
        if self.recipe:
            check_name(self.recipe)
        else:
            check_scikit_learn()

    def to_args(self) -> list[str]:
        """The options that differ from their defaults, as one would type them."""
        options = (option for option in fields(self) if option.name != "recipe")
        changed = [option for option in options if getattr(self, option.name) != option.default]
        typed = [(flag(option), getattr(self, option.name)) for option in changed]
        recipe = [self.recipe] if self.recipe else []
        return recipe + [arg for name, value in typed for arg in ([name] if value is True else [name, str(value)])]

    @classmethod
    def from_args(cls, args: Sequence[str]) -> "TrainConfig":
        parser = argparse.ArgumentParser("python -m rollcall.train", description="One rank of `rollcall train`.")
        for option in fields(cls):
            if option.name == "recipe":
                parser.add_argument("recipe", nargs="?", default="", help=option.metadata["help"])
                continue
            kind = option.metadata["kind"]
            how: dict[str, Any] = {"action": "store_true"} if kind is bool else {"type": kind}
            parser.add_argument(flag(option), default=option.default, help=option.metadata["help"], **how)
        config = cls(**vars(parser.parse_args(args)))
        config.check()
        return config


def flag(option: "Field[Any]") -> str:
    return f"--{option.name.replace('_', '-')}"


def check_scikit_learn() -> None:
    """Raise UsageError if the data is missing. Does not import scikit-learn: that takes a second."""
    if find_spec("sklearn") is None:
        raise UsageError(
            "the training data (handwritten digits) comes with scikit-learn, which is not installed: "
            "pip install 'torch-rollcall[demo]'"
        )
