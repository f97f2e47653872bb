"""What recording costs a DDP training step on two ranks, beside torch.profiler and TORCH_DISTRIBUTED_DEBUG=DETAIL."""

import argparse
import json
import math
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any

from rich.table import Table

from contenders import PROGRAMS, ROLLCALL
from jobs import Jobs
from results import Goal, Result, how_it_failed, middle, progress, table

MOST = 0.01
RANKS = 2
PLAIN = "nothing"


@dataclass(frozen=True)
class Watcher:
    """What looks at the training: options of the launcher, of the program, and variables."""

    name: str
    launch: tuple[str, ...] = ("--no-record",)
    program: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)


WATCHERS = (
    Watcher(PLAIN),
    Watcher("rollcall", launch=()),
    Watcher("torch.profiler", program=("--profile",)),
    Watcher("TORCH_DISTRIBUTED_DEBUG=DETAIL", env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}),
)
Round = dict[str, dict[str, Any] | None]


def measure(jobs: Jobs, options: argparse.Namespace) -> Result:
    tables, goals, figures = [], [], {}
    for model, steps in (("digits", options.digits_steps), ("ten-million", options.big_steps)):
        rounds = [
            {each.name: _train(jobs, model, steps, each, options.timeout_s) for each in WATCHERS}
            for _ in range(options.step_repeats)
        ]
        tables.append(_table(model, steps, rounds))
        goals += _goals(model, rounds)
        figures[model] = rounds
    return Result(tables, goals, figures)


def _train(jobs: Jobs, model: str, steps: int, watcher: Watcher, timeout_s: float) -> dict[str, Any] | None:
    words = [str(ROLLCALL.executable), "run", "-n", str(RANKS), *watcher.launch, str(PROGRAMS / "train_steps.py")]
    with jobs.start([*words, model, str(steps), *watcher.program], OMP_NUM_THREADS="1", **watcher.env) as job:
        code = job.wait(timeout_s)
        if code != 0:
            progress(f"{model} with {watcher.name} {how_it_failed(code)}:\n{job.last_words()}")
            return None
        told = json.loads((job.folder / "rank-0.json").read_text())
        rings = len(list(job.folder.glob("rollcall/runs/latest/rings/*/*.ring")))
    if rings != (0 if "--no-record" in watcher.launch else RANKS):
        progress(f"{model} with {watcher.name} left {rings} rings: no figure")
        return None
    step_us = median(told["steps_ns"][steps // 10 :]) / 1000
    progress(f"{model} with {watcher.name}: {step_us:,.0f} µs a step")
    return {"step_us": step_us, "cpu_us": told["cpu_ns"] / 1000, "digest": told["digest"]}


def _ratios(rounds: list[Round], name: str, what: str = "step_us") -> list[float]:
    """How much longer than with nothing, round by round: what else the machine did was the same for both."""
    pairs = [(each[PLAIN], each[name]) for each in rounds]
    return [watched[what] / plain[what] - 1 for plain, watched in pairs if plain and watched]


def _doubt(ratios: list[float]) -> float:
    """How far the median may be off: from the spread of the middle half."""
    if len(ratios) < 3:
        return 1.0
    low, _, high = quantiles(ratios, n=4)
    return (high - low) / math.sqrt(len(ratios))


def _table(model: str, steps: int, rounds: list[Round]) -> Table:
    made = table(
        f"A DDP training step, {model}, {RANKS} gloo ranks ({len(rounds)} rounds of {steps} steps)",
        *("watched by", "a step", "longer", "lowest", "highest", "CPU time", "same results"),
    )
    plain = {each[PLAIN]["digest"] for each in rounds if each[PLAIN]}
    for watcher in WATCHERS:
        found = [each[watcher.name] for each in rounds if each[watcher.name]]
        step_us, ratios = middle([each["step_us"] for each in found]), _ratios(rounds, watcher.name)
        cpu = middle(_ratios(rounds, watcher.name, "cpu_us"))
        made.add_row(
            watcher.name,
            "failed" if step_us is None else f"{step_us:,.0f} µs",
            *([f"{each:+.1%}" for each in (median(ratios), min(ratios), max(ratios))] if ratios else ["–"] * 3),
            "–" if cpu is None else f"{cpu:+.1%}",
            "–" if not found else "yes" if {each["digest"] for each in found} == plain else "NO",
        )
    return made


def _goals(model: str, rounds: list[Round]) -> list[Goal]:
    ratios = _ratios(rounds, "rollcall")
    ratio, doubt = middle(ratios), _doubt(ratios)
    both = [{each[name]["digest"] for each in rounds if each[name]} for name in (PLAIN, "rollcall")]
    same = both[0] == both[1] and len(both[0]) == 1
    return [
        Goal(
            f"recording a DDP step, {model}",
            f"≤ {MOST:.0%}",
            "failed" if ratio is None else f"{ratio:+.1%} ± {doubt:.1%}",
            None if ratio is None or doubt > MOST else ratio <= MOST,
        ),
        Goal(
            f"results of {model} with and without",
            "bit-identical",
            "the same" if same else "not the same" if all(both) else "failed",
            None if not all(both) else same,
        ),
    ]
