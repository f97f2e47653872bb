"""Values for a model on meta by the function that the model has for it."""

import pytest
import torch
from torch import nn

import rollcall
from rollcall.train.weights.initialize import find_problem
from tests.train.conftest import WarmRanks


class Stretch(nn.Module):
    """It has no reset_parameters, as many modules of transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(4))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs * self.factor


class WithFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer, self.stretch = nn.LayerNorm(4), nn.Linear(4, 4), Stretch()

    def _init_weights(self, module: nn.Module) -> None:
        """It leaves nn.LayerNorm as it was built."""
        if isinstance(module, nn.Linear):
            nn.init.constant_(module.weight, 2.0)
        elif isinstance(module, Stretch):
            nn.init.constant_(module.factor, 3.0)


class WithAnother(WithFunction):
    def _init_weights(self) -> None:  # type: ignore[override]
        raise AssertionError("it takes no module: it is not the function meant here")


def on_meta(model: type[WithFunction]) -> WithFunction:
    with torch.device("meta"):
        return model()


def values_on_a_rank() -> tuple[float, float, float]:
    model = on_meta(WithFunction)
    with rollcall.init() as world:
        rollcall.wrap(model, world, "none")
    return model.norm.weight.mean().item(), model.layer.weight.mean().item(), model.stretch.factor.mean().item()


def test_the_models_own_function_is_called_after_reset_parameters(ranks: WarmRanks) -> None:
    assert ranks(values_on_a_rank, 1) == [(1.0, 2.0, 3.0)]


@pytest.mark.parametrize(
    ("model", "sentence"), [(WithFunction, None), (WithAnother, "stretch (Stretch) is on meta and has no")]
)
def test_only_a_function_of_a_module_counts(model: type[WithFunction], sentence: str | None) -> None:
    found = find_problem(on_meta(model), None, is_loaded=False)
    assert (found is None) if sentence is None else sentence in (found or "")
