"""Named moments of a training, and what comes with rollcall for them."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import rollcall
from rollcall.train.callbacks import ema
from rollcall.train.callbacks.callback import Callback, find_problem
from rollcall.train.callbacks.profile import Profile
from rollcall.train.callbacks.throughput import Throughput, count_tokens
from tests.train.blocks import Blocks, train
from tests.train.conftest import WarmRanks
from tests.train.small import differences


class Diary(Callback):
    """Notes every moment, and counts epochs beyond an interruption."""

    def __init__(self) -> None:
        self.moments: list[str] = []
        self.epochs = 0

    def fit_begin(self, trainer: Any) -> None:
        self.moments.append(f"fit {self.epochs}")

    def step_end(self, trainer: Any) -> None:
        self.moments.append(f"step {trainer.step}")

    def metrics(self, trainer: Any, metrics: dict[str, float]) -> None:
        metrics["mine"] = 7.0

    def epoch_end(self, trainer: Any, metrics: dict[str, float]) -> None:
        self.epochs += 1
        self.moments.append(f"epoch, mine {metrics['mine']}")

    def save(self, trainer: Any) -> None:
        self.moments.append("save")

    def state_dict(self) -> dict[str, int]:
        return {"epochs": self.epochs}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epochs = state["epochs"]


def train_with_callbacks(*, folder: Path, epochs: int) -> dict[str, Any]:
    diary = Diary()
    callbacks = [diary, Throughput(peak_flops=1e12), Profile(2, 3, folder / "profile")]
    found = train(
        batch_size=16,
        make=Blocks,
        epochs=epochs,
        folder=folder / "snapshots",
        callbacks=callbacks,
    )
    return {**found, "moments": diary.moments}


def test_moments_come_in_order(ranks: WarmRanks, tmp_path: Path) -> None:
    """Their state continues after an interruption; MFU, tokens and a profile come with them."""
    first = ranks(partial(train_with_callbacks, folder=tmp_path, epochs=1), 2)[0]
    assert first["moments"] == ["fit 0", "step 1", "step 2", "epoch, mine 7.0", "save"]
    metrics = first["metrics"]
    assert metrics["mine"] == 7.0
    assert metrics["mfu"] == pytest.approx(metrics["flops_per_s"] / 2e12)
    # Forward and backward of the matrices: 6 operations for each of their weights and sample, but 4 for the first
    # layer's two uses, whose inputs need no gradient.
    weights = 3 * 2 * 60 + 18
    assert metrics["flops_per_s"] / metrics["tokens_per_s"] == pytest.approx(6 * weights + 4 * 2 * 60)
    assert ranks(partial(train_with_callbacks, folder=tmp_path, epochs=2), 2)[0]["moments"][0] == "fit 1"
    events = json.loads((tmp_path / "profile" / "rank-1.json").read_text())["traceEvents"]
    assert any(event.get("name") == "aten::addmm" for event in events)


def test_bad_callbacks_are_named() -> None:
    """One sentence each."""
    assert "a callback is a int" in (find_problem([3]) or "")
    assert "ema is 0: expected a number between 0 and 1" in (ema.find_problem(0) or "")
    with pytest.raises(rollcall.UsageError, match="has no steps"):
        Profile(3, 2)


def test_tokens_are_counted_where_there_are_some() -> None:
    """Integers are tokens; other samples count as one each."""
    assert count_tokens([torch.zeros(4, 8, dtype=torch.long), torch.zeros(4)]) == 32
    assert count_tokens({"image": torch.zeros(4, 3, 8)}) == 4


def train_with_average(*, folder: Path | None, epochs: int, strategy: str) -> dict[str, torch.Tensor]:
    averages: list[dict[str, torch.Tensor]] = []

    class Keep(Callback):
        def fit_end(self, trainer: Any) -> None:
            before = [each.detach().clone() for each in trainer.model.parameters()]
            with trainer.ema.applied():
                model = getattr(trainer.model, "module", trainer.model)
                averages.append({name: _whole(each) for name, each in model.named_parameters()})
            after = trainer.model.parameters()
            assert all(torch.equal(_whole(one), _whole(other)) for one, other in zip(before, after, strict=True))

    train(batch_size=8, make=Blocks, epochs=epochs, folder=folder, strategy=strategy, ema=0.9, callbacks=[Keep()])
    return averages[0]


def _whole(tensor: Any) -> torch.Tensor:
    whole: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole.detach().clone()


def test_the_average_of_the_weights_continues(ranks: WarmRanks, tmp_path: Path) -> None:
    """Under FSDP2 as under DDP, and interrupted as whole."""
    whole = ranks(partial(train_with_average, folder=None, epochs=2, strategy="fsdp"), 2)[0]
    ranks(partial(train_with_average, folder=tmp_path, epochs=1, strategy="fsdp"), 2)
    resumed = ranks(partial(train_with_average, folder=tmp_path, epochs=2, strategy="fsdp"), 2)[0]
    assert differences(whole, resumed) == []
    ddp = ranks(partial(train_with_average, folder=None, epochs=2, strategy="ddp"), 2)[0]
    assert max((whole[name] - ddp[name]).abs().max().item() for name in whole) < 1e-5
