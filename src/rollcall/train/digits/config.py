"""The options of a `rollcall train`: read from the command line by the launcher, handed to each rank as arguments."""

import argparse
import math
from collections.abc import Sequence
from dataclasses import Field, dataclass, field, fields
from importlib.util import find_spec
from typing import Any, Literal

from rollcall.errors import UsageError
from rollcall.train.save_interval import SaveInterval


def _option(default: Any, help_text: str, *choices: str, least: float | None = None, kind: type = str) -> Any:
    kind = kind if default is None else type(default)
    return field(default=default, metadata={"help": help_text, "choices": choices, "least": least, "kind": kind})


@dataclass(frozen=True)
class TrainConfig:
    model: str = _option("mlp", "The model: mlp or cnn.", "mlp", "cnn")
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
        SaveInterval.parse(self.save_every)

    def to_args(self) -> list[str]:
        """The options that differ from their defaults, as one would type them."""
        changed = [option for option in fields(self) if getattr(self, option.name) != option.default]
        typed = [(flag(option), getattr(self, option.name)) for option in changed]
        return [arg for name, value in typed for arg in ([name] if value is True else [name, str(value)])]

    @classmethod
    def from_args(cls, args: Sequence[str]) -> "TrainConfig":
        parser = argparse.ArgumentParser("python -m rollcall.train", description="One rank of `rollcall train`.")
        for option in fields(cls):
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
