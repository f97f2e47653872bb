"""rollcall lab gradients

Which gradient updates the weights, my own or the average? We look at one step in its four phases: forward, backward,
averaging, update. Then we train for twenty steps in five ways: in one process on the whole batch, averaging by hand,
with DDP, without averaging, and with an averaging that silently does nothing.
"""

import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rollcall import World
from rollcall.lab.experiment import Experiment, Results, Verdict, always, table
from rollcall.lab.plots import BLACK, BLUE, GREY, ORANGE, RED, Axes, Figure, colour_of
from rollcall.lab.progress import track
from rollcall.units import in_seconds

STEPS = 20
ROWS_PER_RANK = 16
RATE = 0.05
TOLERANCE = 1e-6
PHASES = ("start", "forward", "backward", "averaging", "update")
Averaging = Callable[[Iterable[nn.Parameter], int], int]


def make_model(seed: int, device: torch.device) -> nn.Module:
    """The same weights on every rank: they share a seed."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).to(device)


def make_batch(seed: int, world: World) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 + seed)
    inputs = torch.randn(ROWS_PER_RANK * world.size, 8, generator=generator)
    targets = inputs.sin().sum(1, keepdim=True) + 0.1 * torch.randn(len(inputs), 1, generator=generator)
    return inputs.to(world.device), targets.to(world.device)


def average(parameters: Iterable[nn.Parameter], size: int) -> int:
    """Add up every gradient over all ranks and divide; returns how many parameters were averaged."""
    count = 0
    for parameter in parameters:
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= size
            count += 1
    return count


def average_with_wrong_type_check(parameters: Iterable[nn.Parameter], size: int) -> int:
    """With a check of the type that old tutorials have: a parameter is no plain Tensor, so all are skipped."""
    return average([parameter for parameter in parameters if type(parameter) is torch.Tensor], size)


def average_nothing(parameters: Iterable[nn.Parameter], size: int) -> int:
    return 0


def weights_of(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def spread_of(weights: torch.Tensor) -> float:
    """The largest difference between two ranks in any weight."""
    highest, lowest = weights.clone(), weights.clone()
    dist.all_reduce(highest, dist.ReduceOp.MAX)
    dist.all_reduce(lowest, dist.ReduceOp.MIN)
    return float((highest - lowest).max())


def train(
    model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, size: int, averaging: Averaging
) -> tuple[list[torch.Tensor], int]:
    """Twenty steps: the weights after each one, and how many parameters were averaged per step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    after, count = [], 0
    for _ in range(STEPS):
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        count = averaging(model.parameters(), size)
        optimizer.step()
        after.append(weights_of(model).clone())
    return after, count


def look_at_one_step(world: World, seed: int) -> dict[str, Any]:
    """One step, phase by phase: one weight, its gradient, and how long each phase took."""
    model = make_model(seed, world.device)
    inputs, targets = make_batch(seed, world)
    mine = slice(world.rank * ROWS_PER_RANK, (world.rank + 1) * ROWS_PER_RANK)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    first = next(model.parameters())
    weight, gradient, took = [], [], []

    def note() -> None:
        weight.append(first.detach()[0, 0].item())
        gradient.append(None if first.grad is None else first.grad[0, 0].item())
        took.append(time.monotonic())

    note()
    loss = nn.functional.mse_loss(model(inputs[mine]), targets[mine])
    note()
    loss.backward()
    note()
    own, before = first.grad.clone(), first.detach().clone()
    average(model.parameters(), world.size)
    averaged = first.grad.clone()
    note()
    optimizer.step()
    note()
    moved = before - first.detach()
    return {
        "weight": weight,
        "gradient": gradient,
        "took_s": [later - earlier for earlier, later in pairwise(took)],
        "off_by_average": float((moved - RATE * averaged).abs().max()),
        "off_by_own": float((moved - RATE * own).abs().max()),
    }


def measure(world: World, trials: int) -> dict[str, Any]:
    """Every way with every seed: the distance of this rank's weights from those of one process on the whole batch."""
    apart: dict[str, list[list[float]]] = {}
    averaged: dict[str, int] = {}
    spread: dict[str, list[float]] = {}
    for seed in track(range(trials)):
        inputs, targets = make_batch(seed, world)
        mine = slice(world.rank * ROWS_PER_RANK, (world.rank + 1) * ROWS_PER_RANK)
        alone, _ = train(make_model(seed, world.device), inputs, targets, world.size, average_nothing)
        wrapped = DistributedDataParallel(make_model(seed, world.device))
        ways = {
            "by hand": (make_model(seed, world.device), average),
            "DDP": (wrapped, average_nothing),  # DDP averages during backward
            "no averaging": (make_model(seed, world.device), average_nothing),
            "wrong type check": (make_model(seed, world.device), average_with_wrong_type_check),
        }
        for name, (model, averaging) in ways.items():
            after, count = train(model, inputs[mine], targets[mine], world.size, averaging)
            averaged[name] = count
            distances = [float((one - other).abs().max()) for one, other in zip(after, alone, strict=True)]
            apart.setdefault(name, []).append(distances)
            spread.setdefault(name, []).append(spread_of(after[-1]))
    return {"apart": apart, "averaged": averaged, "spread": spread, "step": look_at_one_step(world, 0)}


def judge(results: Results) -> Verdict:
    ways = list(results[0]["apart"])
    apart = {way: max(trial[-1] for r in results for trial in r["apart"][way]) for way in ways}
    spread = {way: max(results[0]["spread"][way]) for way in ways}
    steps = [result["step"] for result in results]
    by_average = max(step["off_by_average"] for step in steps)
    by_own = max(step["off_by_own"] for step in steps)
    unmoved = all(len(set(step["weight"][:4])) == 1 for step in steps)
    own, averaged = ({step["gradient"][place] for step in steps} for place in (2, 3))
    took = [median(step["took_s"][place] for step in steps) for place in range(4)]
    skipped = results[0]["averaged"]["wrong type check"]
    phases = []
    for place, phase in enumerate(PHASES):
        gradients = [step["gradient"][place] for step in steps[:2]]
        shown = ["none" if gradient is None else f"{gradient:+.6f}" for gradient in gradients]
        shown += [f"{step['weight'][place]:+.6f}" for step in steps[:2]]
        phases.append((phase, in_seconds(took[place - 1]) if place else "—", *shown))
    differences = [
        (way, f"{apart[way]:.2g}", f"{spread[way]:.2g}", "4, in backward" if way == "DDP" else count)
        for way, count in results[0]["averaged"].items()
    ]
    return Verdict(
        f"{'the average' if by_average < by_own else 'my own'}: the update moved the weights by the learning rate times"
        f" the averaged gradient, with an error of {by_average:.1g} (for the own gradient it is {by_own:.1g}); backward"
        f" and averaging {'did not change them' if unmoved else 'CHANGED THEM, TOO'}. After {STEPS} steps the weights"
        f" differ from those of one process on the whole batch by {apart['by hand']:.1g} with averaging by hand and by"
        f" {apart['DDP']:.1g} with DDP. Without averaging they differ by {apart['no averaging']:.2g}, and the ranks by"
        f" {spread['no averaging']:.2g} from each other. With the wrong type check {skipped} of 4 parameters were"
        f" averaged, without any error, and the ranks differ by {spread['wrong type check']:.2g}",
        {
            "apart": apart,
            "spread": spread,
            "averaged": results[0]["averaged"],
            "off_by_average": by_average,
            "off_by_own": by_own,
            "phases_s": dict(zip(PHASES[1:], took, strict=True)),
        },
        (
            always(f"by hand, within {TOLERANCE:g} of one process", apart["by hand"] <= TOLERANCE),
            always(f"DDP, within {TOLERANCE:g} of one process", apart["DDP"] <= TOLERANCE),
            always("with averaging all ranks have the same weights", spread["by hand"] == spread["DDP"] == 0),
            always("the weights change in the update alone", unmoved),
            always(
                "before averaging every rank has its own gradient, after it all have the same",
                len(own) > 1 and len(averaged) == 1,
            ),
            always("the update uses the average", by_average <= TOLERANCE < by_own),
            always("without averaging the ranks drift apart", spread["no averaging"] > 1000 * TOLERANCE),
            always(
                "the wrong type check averages nothing",
                skipped == 0 and spread["wrong type check"] == spread["no averaging"],
            ),
        ),
        (
            table(
                "One weight and its gradient on rank 0 and rank 1, phase by phase",
                ("after", "took", "gradient, rank 0", "gradient, rank 1", "weight, rank 0", "weight, rank 1"),
                phases,
            ),
            table(
                f"Difference of weights after {STEPS} steps",
                ("way", "from one process on the whole batch", "between ranks", "parameters averaged per step"),
                differences,
            ),
        ),
    )


def draw(results: Results, figure: Figure) -> None:
    left, above, below = figure.subplot_mosaic(
        [["drift", "gradient"], ["drift", "weight"]], height_ratios=(1.5, 1)
    ).values()
    _draw_drift(results, left)
    for rank, result in enumerate(results):
        gradient = [float("nan") if value is None else value for value in result["step"]["gradient"]]
        above.plot(PHASES, gradient, "o-", color=colour_of(rank), label=f"rank {rank}", lw=1.6)
    above.set(title="One weight in one step", ylabel="its gradient", xticklabels=[])
    above.legend(fontsize=8, loc="upper left")
    below.plot(PHASES, results[0]["step"]["weight"], "o-", color=BLACK, lw=1.6)
    below.set_ylabel("the weight,\nall ranks")
    below.margins(y=0.25)
    above.set_xlim(below.get_xlim())  # gradients exist only from backward on
    for axes in (left, above, below):
        axes.grid(axis="y")


def _draw_drift(results: Results, axes: Axes) -> None:
    styles = {
        "no averaging": (RED, "-"),
        "wrong type check": (GREY, ":"),
        "by hand": (BLUE, "-"),
        "DDP": (ORANGE, "--"),
    }
    for way, (colour, line) in styles.items():
        by_step = [max(1e-9, *(r["apart"][way][0][step] for r in results)) for step in range(STEPS)]
        axes.plot(range(1, STEPS + 1), by_step, line, color=colour, label=way)
    axes.axhline(TOLERANCE, color=GREY, lw=0.8)
    axes.text(STEPS, TOLERANCE * 1.4, "1e-6", ha="right", size=8, color=GREY)
    axes.set(title="Distance from one process", xlabel="step", xticks=range(0, STEPS + 1, 5), yscale="log")
    axes.legend(loc="center right", fontsize=9)


EXPERIMENT = Experiment(
    measure, judge, draw, trials=3, code_on_page=(average, train, look_at_one_step, average_with_wrong_type_check)
)
