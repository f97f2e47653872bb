"""A sharded model trains as on one device, in every way of sharing it."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from rollcall.functions.pool import RankPool
from rollcall.train.sharding.options import Fsdp
from tests.train.blocks import Block, train
from tests.train.conftest import WarmRanks
from tests.train.small import differences, distance

TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def alone(_server: RankPool) -> dict[str, Any]:
    """The same training on one rank, whole."""
    return dict(WarmRanks(_server)(partial(train, batch_size=16, strategy="none"), 1)[0])


@pytest.mark.parametrize(
    ("size", "sharding"),
    [
        (2, Fsdp(units="Block")),
        (2, Fsdp(units=lambda name, module: isinstance(module, Block), offload=True, recompute=True)),
        (4, Fsdp(replicas=2)),
        (4, Fsdp(tensor_parallel=2)),
    ],
)
def test_a_model_from_meta_trains_as_on_one_device(
    ranks: WarmRanks, alone: dict[str, Any], size: int, sharding: Fsdp
) -> None:
    """Initial values bit for bit, the trained ones within 1e-5, with clipped gradients and a short last batch."""
    tensor = sharding.tensor_parallel
    run = partial(train, batch_size=16 * tensor // size, strategy=sharding, tensor_parallel=tensor)
    for found in ranks(run, size):
        assert differences(alone["before"], found["before"]) == []
        assert distance(alone["weights"], found["weights"]) < TOLERANCE
        assert abs(alone["metrics"]["loss"] - found["metrics"]["loss"]) < TOLERANCE
        assert (found["metrics"]["samples"], found["step"]) == (46, alone["step"])


class Noting(nn.Module):
    """Notes in which precision it computes, and what reaches it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.dtypes = nn.Linear(10, 3), set[torch.dtype]()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.dtypes |= {inputs.dtype, self.layer.weight.dtype}
        return self.layer(inputs)


def train_in_bf16() -> tuple[set[torch.dtype], set[torch.dtype]]:
    model = Noting()
    found = train(batch_size=8, make=lambda: model, strategy="fsdp", precision="bf16", epochs=1)
    return model.dtypes, {each.dtype for each in found["weights"].values()}


def test_a_sharded_model_computes_in_bf16(ranks: WarmRanks) -> None:
    """The parameters that the optimizer changes stay float32."""
    assert ranks(train_in_bf16, 2) == [({torch.bfloat16}, {torch.float32})] * 2
