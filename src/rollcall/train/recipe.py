"""What to train and how: the options of `rollcall train`, handed on to its ranks as words."""

import argparse
from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rollcall.errors import UsageError
from rollcall.train.pace import Pace


class Recipe(BaseModel):
    model_config = ConfigDict(frozen=True)

    model: Literal["mlp", "cnn"] = Field(default="mlp", description="The model: mlp, or cnn.")
    epochs: int = Field(default=10, ge=1, description="Epochs in all, those before an interruption included.")
    batch_size: int = Field(default=32, ge=1, description="Samples of a batch, on each rank.")
    lr: float = Field(default=0.003, gt=0, description="Learning rate.")
    seed: int = Field(default=0, description="Where chance begins.")
    strategy: Literal["ddp", "fsdp", "none"] = Field(
        default="ddp", description="How ranks share the model: ddp, fsdp, none."
    )
    accumulate: int = Field(default=1, ge=1, description="Batches for one step of the optimizer.")
    clip_norm: float | None = Field(default=None, gt=0, description="Clip the norm of the gradients here.")
    precision: Literal["fp32", "bf16", "fp16"] = Field(default="fp32", description="fp32, or autocast to bf16 or fp16.")
    compile: bool = Field(default=False, description="Use torch.compile.")
    cosine: bool = Field(default=False, description="Let the learning rate fall along a cosine.")
    uneven: Literal["weigh", "drop"] = Field(
        default="weigh", description="Samples that do not fill the last batch on all ranks: weigh them, or drop them."
    )
    patience: int = Field(
        default=0, ge=0, description="Stop after so many epochs without a better test loss. 0: never."
    )
    snapshots: str = Field(default="snapshots", description="The folder to save to, and to continue from.")
    save_every: str = Field(default="1", description="Save every so many epochs, or 500steps, or 10min.")
    keep: int = Field(default=3, ge=1, description="How many snapshots to keep.")

    def words(self) -> list[str]:
        """As one would type them."""
        typed = self.model_dump(exclude_defaults=True)
        return [
            word
            for name, value in typed.items()
            for word in ([_option(name)] if value is True else [_option(name), str(value)])
        ]

    @classmethod
    def of(cls, **values: object) -> "Recipe":
        Pace.of(str(values.get("save_every", "1")))
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            raise UsageError(f"{_option(str(first['loc'][0]))} {first['input']}: {first['msg'].lower()}") from None

    @classmethod
    def of_words(cls, words: Sequence[str]) -> "Recipe":
        parser = argparse.ArgumentParser("python -m rollcall.train", description="One rank of `rollcall train`.")
        for name, field in cls.model_fields.items():
            if field.annotation is bool:
                parser.add_argument(_option(name), action="store_true", help=field.description)
            else:
                parser.add_argument(_option(name), default=field.default, help=field.description)
        return cls.of(**vars(parser.parse_args(words)))


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
