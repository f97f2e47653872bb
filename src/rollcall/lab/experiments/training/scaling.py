"""rollcall lab scaling

How far does it scale? The same training step on 1, 2, 4 … ranks. Strong scaling: the ranks share one batch; ideally
they are n times as fast. Weak scaling: every rank gets its own batch; ideally they do n times as much in the same time.

Amdahl's law says why it is less: a share s of the work is serial, so n ranks are 1 / (s + (1−s)/n) times as fast. We
fit s to the measurements.
"""

import os
from typing import Any

import torch
import torch.distributed as dist

from rollcall import World
from rollcall.lab.experiment import Experiment, Results, Verdict, always, median_of_slowest, table, usually
from rollcall.lab.measuring import time_once
from rollcall.lab.plots import BLUE, GREY, ORANGE, Figure
from rollcall.lab.progress import track
from rollcall.units import in_seconds, plural

ROWS = 2048
WIDTH = 256
LAYERS = 6


def compute(rows: int, weight: torch.Tensor) -> torch.Tensor:
    """A few layers forward, and a gradient."""
    value = torch.ones(rows, WIDTH, device=weight.device) / WIDTH
    for _ in range(LAYERS):
        value = torch.tanh(value @ weight)
    return value.T @ value


def time_step(rows: int, weight: torch.Tensor, group: Any) -> float:
    """Each rank computes on its rows; then all gradients are added up. Seconds, with all ranks starting together."""
    dist.barrier(group=group)
    return time_once(lambda: dist.all_reduce(compute(rows, weight), group=group), weight.device)


def list_counts(size: int) -> list[int]:
    """1, 2, 4 … and all ranks."""
    counts = [1 << power for power in range(size.bit_length()) if 1 << power < size]
    return [*counts, size]


def measure(world: World, trials: int) -> dict[str, Any]:
    """Every number of ranks in turn; ranks that are not needed wait."""
    torch.set_num_threads(1)  # one core per rank
    weight = torch.eye(WIDTH, device=world.device)
    seconds: list[dict[str, Any]] = []
    sums = []
    for count in track(list_counts(world.size)):
        group = dist.new_group(list(range(count)))
        if world.rank < count:
            rows = {"strong": ROWS // count, "weak": ROWS}
            for kind, mine in track(rows.items()):
                times = [time_step(mine, weight, group) for _ in track(range(trials + 1))]
                seconds.append({"ranks": count, "kind": kind, "rows": mine * count, "s": times[1:]})
            total = torch.ones(1, device=world.device)
            dist.all_reduce(total, group=group)
            sums.append([count, total.item()])
        world.barrier()
    return {"seconds": seconds, "sums": sums, "cores": len(os.sched_getaffinity(0))}


def throughputs(results: Results) -> dict[str, dict[int, float]]:
    """Rows per second, by kind and number of ranks: from the median over trials of the slowest rank."""
    found: dict[str, dict[int, float]] = {"strong": {}, "weak": {}}
    for row in results[0]["seconds"]:  # rank 0 takes part in all
        times = [
            other["s"]
            for result in results
            for other in result["seconds"]
            if (other["ranks"], other["kind"]) == (row["ranks"], row["kind"])
        ]
        found[row["kind"]][row["ranks"]] = row["rows"] / median_of_slowest(times)
    return found


def relative_to_one(rates: dict[int, float]) -> dict[int, float]:
    return {n: rate / rates[1] for n, rate in rates.items()}


def fit_amdahl(speedups: dict[int, float]) -> float:
    """The serial share s, by least squares on 1/speedup − 1/n = s · (1 − 1/n); between 0 and 1."""
    points = [(1 - 1 / n, 1 / speedup - 1 / n) for n, speedup in speedups.items() if n > 1]
    share = sum(x * y for x, y in points) / sum(x * x for x, _ in points)
    return min(1.0, max(0.0, share))


def judge(results: Results) -> Verdict:
    rates = throughputs(results)
    speedups = {kind: relative_to_one(by_n) for kind, by_n in rates.items()}
    serial = {kind: fit_amdahl(by_n) for kind, by_n in speedups.items()}
    most, cores = len(results), results[0]["cores"]
    limit = f"at most {1 / serial['strong']:.1f} times as fast" if serial["strong"] else "without a limit in sight"
    rows = []
    for n in rates["strong"]:
        strong, weak = ((f"{rates[kind][n]:,.0f}", f"{speedups[kind][n]:.2f}") for kind in rates)
        rows.append((n, *strong, *weak, in_seconds(ROWS / rates["strong"][n])))
    return Verdict(
        f"on {plural(cores, 'core')}, {most} ranks did {speedups['strong'][most]:.2f} times the work of one with a"
        f" shared batch (strong scaling) and {speedups['weak'][most]:.2f} times with a batch for each (weak scaling),"
        f" where {most} is ideal. Fit of Amdahl's law: {serial['strong']:.0%} of a strong step is serial, so {limit};"
        f" {serial['weak']:.0%} of a weak one",
        {
            "rows_per_s": {kind: {str(n): rate for n, rate in by_n.items()} for kind, by_n in rates.items()},
            "speedup": {kind: {str(n): s for n, s in by_n.items()} for kind, by_n in speedups.items()},
            "serial_share": serial,
            "cores": cores,
        },
        (
            always(
                "sums are right on every number of ranks", all(n == total for r in results for n, total in r["sums"])
            ),
            usually(
                "no number of ranks is faster than ideal (within a tenth)",
                all(s <= 1.1 * n for by_n in speedups.values() for n, s in by_n.items()),
            ),
            usually("on two cores or more, two ranks do more than one", cores < 2 or speedups["weak"][2] > 1),
        ),
        (table("Rows per second, and speedup", ("ranks", "strong", "×", "weak", "×", "time of a strong step"), rows),),
    )


def draw(results: Results, figure: Figure) -> None:
    cores, most = results[0]["cores"], len(results)
    titles = {"strong": "Strong scaling: one batch, shared", "weak": "Weak scaling: a batch for each"}
    line = [1 + (most - 1) * place / 100 for place in range(101)]
    panels = zip(figure.subplots(1, 2, sharey=True), throughputs(results).items(), (BLUE, ORANGE), strict=True)
    for axes, (kind, rates), colour in panels:
        speedups = relative_to_one(rates)
        share = fit_amdahl(speedups)
        axes.plot(line, line, color=GREY, lw=1.2, ls="--", label="ideal")
        fitted = [1 / (share + (1 - share) / n) for n in line]
        axes.plot(line, fitted, color=colour, alpha=0.45, label=f"Amdahl, s = {share:.0%}")
        axes.plot(list(speedups), list(speedups.values()), "o", color=colour, ms=8, label="measured")
        for n, speedup in speedups.items():
            axes.annotate(f"{speedup:.2f} ×", (n, speedup), (6, -12), textcoords="offset points", size=9)
        if cores < most:
            axes.axvline(cores, color=GREY, lw=0.8, ls=":")
            axes.text(cores, 0.25, f" {cores} cores", size=8, color=GREY)
        axes.set(title=titles[kind], xlabel="ranks", xticks=list(speedups), ylim=(0, most * 1.1))
        axes.legend(loc="upper left")
        axes.grid(axis="y")
    figure.axes[0].set_ylabel("rows per second, relative to one rank")


EXPERIMENT = Experiment(measure, judge, draw, trials=8, code_on_page=(compute, time_step, measure, fit_amdahl))
