"""What to train and how: the options of `rollcall train`, handed on to its ranks as words."""

import argparse
import math
from collections.abc import Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any, Literal

from rollcall.errors import UsageError
from rollcall.train.save_interval import Pace


def _option(default: Any, help_text: str, *choices: str, least: float | None = None, kind: type = str) -> Any:
    kind = kind if default is None else type(default)
    return field(default=default, metadata={"help": help_text, "choices": choices, "least": least, "kind": kind})


@dataclass(frozen=True)
class Recipe:
    model: str = _option("mlp", "The model: mlp, or cnn.", "mlp", "cnn")
    epochs: int = _option(10, "Epochs in all, those before an interruption included.", least=1)
    batch_size: int = _option(32, "Samples of a batch, on each rank.", least=1)
    lr: float = _option(0.003, "Learning rate.", least=0)
    seed: int = _option(0, "Where chance begins.", least=0)
    strategy: Literal["ddp", "fsdp", "none"] = _option(
        "ddp", "How ranks share the model: ddp, fsdp, none.", "ddp", "fsdp", "none"
    )
    accumulate: int = _option(1, "Batches for one step of the optimizer.", least=1)
    clip_norm: float | None = _option(None, "Clip the norm of the gradients here.", kind=float)
    precision: Literal["fp32", "bf16", "fp16"] = _option(
        "fp32", "fp32, or autocast to bf16 or fp16.", "fp32", "bf16", "fp16"
    )
    compile: bool = _option(False, "Use torch.compile.")
    cosine: bool = _option(False, "Let the learning rate fall along a cosine.")
    uneven: Literal["weigh", "drop"] = _option(
        "weigh", "Samples that do not fill the last batch on all ranks: weigh them, or drop them.", "weigh", "drop"
    )
    patience: int = _option(0, "Stop after so many epochs without a better test loss. 0: never.", least=0)
    snapshots: str = _option("snapshots", "The folder to save to, and to continue from.")
    save_every: str = _option("1", "Save every so many epochs, or 500steps, or 10min.")
    keep: int = _option(3, "How many snapshots to keep.", least=1)

    def check(self) -> None:
        """Refuse what cannot work, before a rank starts."""
        for each in fields(self):
            value, choices, least = getattr(self, each.name), each.metadata["choices"], each.metadata["least"]
            if choices and value not in choices:
                raise UsageError(f"{name_of(each)} {value} is not known: use {', '.join(choices)}")
            if least is not None and not least <= value < math.inf:  # NaN is neither
                raise UsageError(f"{name_of(each)} {value} is not possible: expected a number from {least} on")
        if self.clip_norm is not None and not 0 < self.clip_norm < math.inf:
            raise UsageError(f"--clip-norm {self.clip_norm} is not possible: expected a number above 0")
        Pace.of(self.save_every)

    def words(self) -> list[str]:
        """As one would type them."""
        typed = [(name_of(each), getattr(self, each.name)) for each in fields(self) if _is_set(self, each)]
        return [word for name, value in typed for word in ([name] if value is True else [name, str(value)])]

    @classmethod
    def of_words(cls, words: Sequence[str]) -> "Recipe":
        parser = argparse.ArgumentParser("python -m rollcall.train", description="One rank of `rollcall train`.")
        for each in fields(cls):
            if each.metadata["kind"] is bool:
                parser.add_argument(name_of(each), action="store_true", help=each.metadata["help"])
            else:
                parser.add_argument(
                    name_of(each), default=each.default, type=each.metadata["kind"], help=each.metadata["help"]
                )
        recipe = cls(**vars(parser.parse_args(words)))
        recipe.check()
        return recipe


def help_of(name: str) -> str:
    return str(next(each for each in fields(Recipe) if each.name == name).metadata["help"])


def name_of(option: "Field[Any]") -> str:
    return f"--{option.name.replace('_', '-')}"


def _is_set(recipe: Recipe, option: "Field[Any]") -> bool:
    return bool(getattr(recipe, option.name) != option.default)
