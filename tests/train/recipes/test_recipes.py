"""`rollcall train MODULE:FUNCTION`: a recipe of the user's."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset

import rollcall
from rollcall.errors import UsageError
from rollcall.train.recipes.config import TrainConfig
from rollcall.train.recipes.find import check_name, find_function
from rollcall.train.recipes.program import _loader
from rollcall.train.recipes.recipe import Recipe, as_recipe
from tests.rollcall_command import Runner

MODULE = """\
import torch
from torch import nn
from torch.utils.data import TensorDataset

def recipe(options):
    model, inputs = nn.Linear(4, 2), torch.randn(64, 4)
    return model, torch.optim.SGD(model.parameters(), lr=options.lr), TensorDataset(inputs, (inputs[:, 0] > 0).long())

def half(options):
    return nn.Linear(4, 2), None
"""


@pytest.mark.parametrize(
    ("returned", "problem"),
    [
        ((1, 2), r"it returned 2 values: expected \(model, optimizer, data\) or a rollcall.Recipe"),
        (None, "it returned an object of type NoneType"),
        ((3, 4, []), "its model is of type int"),
        ((nn.Linear(1, 1), None, 5), "its data is of type int: expected a dataset or a loader"),
    ],
)
def test_what_a_recipe_must_not_return(returned: object, problem: str) -> None:
    """One sentence says what it returned, and what was expected."""
    with pytest.raises(AssertionError, match=problem):
        raise AssertionError(as_recipe(returned))


def test_what_a_recipe_returns() -> None:
    """Three values, or a Recipe with more."""
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    assert as_recipe((model, optimizer, [])) == Recipe(model, optimizer, [])


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("recipe", "recipe does not name a recipe: use MODULE:FUNCTION"),
        ("no_such_module:recipe", "there is no module no_such_module"),
        ("none.py:recipe", "there is no file none.py"),
    ],
)
def test_a_recipe_that_is_not_there(name: str, problem: str) -> None:
    """The launcher says so before any rank starts."""
    with pytest.raises(UsageError, match=problem):
        check_name(name)


def test_a_module_without_the_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions that it has are named."""
    (tmp_path / "of_mine.py").write_text("from json import dumps\ndef other(options): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UsageError, match=r"of_mine has no function recipe: it has other$"):
        find_function("of_mine:recipe")


@pytest.mark.parametrize(("arguments", "is_right"), [("", False), ("a, b", False), ("options", True), ("*a", True)])
def test_a_recipe_takes_the_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, is_right: bool
) -> None:
    """One that cannot take them is refused in a sentence, before it is called."""
    module = f"takes_{len(arguments)}"
    (tmp_path / f"{module}.py").write_text(f"def recipe({arguments}): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    if is_right:
        assert callable(find_function(f"{module}:recipe"))
    else:
        with pytest.raises(UsageError, match=r"write `def recipe\(options\):`"):
            find_function(f"{module}:recipe")


def test_a_dataset_without_a_length_is_cut_into_batches() -> None:
    """It distributes its samples itself; batches it does not make."""

    class Numbers(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(5))

    with rollcall.init() as world:
        found = _loader(Numbers(), TrainConfig(batch_size=2), world)
    assert [batch.tolist() for batch in found] == [[0, 1], [2, 3], [4]]


def test_the_recipe_comes_first_in_the_arguments_of_a_rank() -> None:
    """And is read back from there."""
    config = TrainConfig(recipe="my_module:recipe", lr=0.1)
    assert config.to_args() == ["my_module:recipe", "--lr", "0.1"]
    assert TrainConfig.from_args(config.to_args()) == config
    with pytest.raises(UsageError, match="--model cnn is for the digits"):
        TrainConfig(recipe="my_module:recipe", model="cnn").check()


def test_train_and_continue(rollcall: Runner) -> None:
    """As a user types it: three values are enough; a wrong recipe ends all ranks with one sentence."""
    (rollcall.folder / "mine.py").write_text(MODULE)
    common = ("-n", 2, "--lr", 0.5, "--ema", 0.9)
    first = rollcall("train", "mine:recipe", *common, "--epochs", 1)
    assert first.code == 0, first.err
    assert "over 64 samples" in first.out
    again = rollcall("train", "mine:recipe", *common, "--epochs", 2)
    assert "epoch 2/2" in again.out
    assert "epoch 1/2" not in again.out
    bad = rollcall("train", "mine:half", "-n", 2)
    assert bad.code == 2
    assert (bad.out + bad.err).count("recipe mine:half: it returned 2 values") == 1
