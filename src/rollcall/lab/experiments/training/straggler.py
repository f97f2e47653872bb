"""rollcall lab straggler

What does one slow rank cost? In every step all ranks compute and then add up; one of them computes a little longer.
At every all_reduce the others wait for it, so all are as slow as the slowest.

Each delay is a separate recorded run. From the recording alone we compute which rank made the others wait, and how long
a step would take without the delay; the run without a delay shows whether that is right.
"""

import time
from itertools import pairwise
from statistics import fmean
from typing import Any

import torch
import torch.distributed as dist

from rollcall import World
from rollcall.lab.experiment import Case, Experiment, Results, Verdict, always, found_kind, table, usually
from rollcall.lab.plots import BLUE, GREY, ORANGE, Figure, colour_of, label_ranks
from rollcall.lab.progress import track
from rollcall.units import in_seconds

COMPUTE_S = 0.004
DELAYS_MS = (0, 2, 5, 10, 20)
CASES = tuple(Case(f"{delay} ms", f"one rank computes {delay} ms longer") for delay in DELAYS_MS)


def step(world: World, delay_s: float) -> None:
    """Compute, then add up the results of all ranks."""
    is_slow = world.rank == world.size - 1
    time.sleep(COMPUTE_S + (delay_s if is_slow else 0))
    dist.all_reduce(torch.ones(1, device=world.device))


def measure(world: World, case: str, trials: int) -> dict[str, Any]:
    """Runs as many steps as there are trials; returns their number, and seconds per step."""
    delay_s = int(case.split()[0]) / 1000
    dist.all_reduce(torch.ones(1, device=world.device))  # warm-up
    world.barrier()
    start_s = time.monotonic()
    for _ in track(range(trials)):
        step(world, delay_s)
    return {"steps": trials, "step_s": (time.monotonic() - start_s) / trials}


def explain_delay(ending: dict[str, Any]) -> dict[str, Any]:
    """Reads from the recording which rank made the others wait, how long, and how long a step would take without
    that."""
    caused = {row["rank"]: row["caused_s"] for row in ending["waits"]}
    suffered = {row["rank"]: row["suffered_s"] for row in ending["waits"]}
    slowest = max(caused, key=caused.__getitem__)
    # The others wait at the same time, so the run loses less than the sum of their waits.
    lost_s = {row["rank"]: row["saved_without_s"] for row in ending["waits"]}[slowest]
    took, steps = max(value["step_s"] for value in ending["values"]), ending["values"][0]["steps"]
    return {
        "step_s": took,
        "slowest": slowest,
        "caused_s": caused,
        "suffered_s": suffered,
        "what_if_step_s": took - lost_s / steps,
    }


def judge(results: Results) -> Verdict:
    ranks = len(results["0 ms"]["values"])
    slow, steps = ranks - 1, results["0 ms"]["values"][0]["steps"]
    by_delay = {delay: explain_delay(results[f"{delay} ms"]) for delay in DELAYS_MS}
    base, most = by_delay[0], by_delay[DELAYS_MS[-1]]
    large = {delay: each for delay, each in by_delay.items() if delay >= 5}
    off = max(abs(each["what_if_step_s"] / base["step_s"] - 1) for each in large.values())
    wait_s = fmean(waited for rank, waited in most["suffered_s"].items() if rank != slow) / steps
    rows = []
    for delay, each in by_delay.items():
        slowest, step_s, without_s = each["slowest"], each["step_s"], each["what_if_step_s"]
        waited = in_seconds(each["caused_s"][slowest])
        rows.append((f"{delay} ms", in_seconds(step_s), in_seconds(without_s), f"rank {slowest}", waited))
    return Verdict(
        f"one rank that is {DELAYS_MS[-1]} ms slower costs all {ranks} ranks"
        f" {in_seconds(most['step_s'] - base['step_s'])} per step: it takes {in_seconds(most['step_s'])} instead of"
        f" {in_seconds(base['step_s'])}. The recording names rank {most['slowest']}: each of the others waited"
        f" {in_seconds(wait_s)} per step for it. Computed from the recording, a step without the delay takes"
        f" {in_seconds(most['what_if_step_s'])}; the run without a delay took {in_seconds(base['step_s'])} (for all"
        f" delays from 5 ms on, the error is at most {off:.0%})",
        {
            "slow_rank": slow,
            "steps": steps,
            "by_delay_ms": {str(delay): each for delay, each in by_delay.items()},
            "what_if_off_by": off,
            "explain": found_kind(results[f"{DELAYS_MS[-1]} ms"]),
        },
        (
            always("the recording names the slow rank", most["slowest"] == slow),
            usually("it does so at every delay from 5 ms on", all(each["slowest"] == slow for each in large.values())),
            usually(
                "the longer the delay, the longer the step",
                all(shorter["step_s"] < longer["step_s"] for shorter, longer in pairwise(large.values())),
            ),
            usually("the computed step without the delay is within a quarter of the measured one", off < 0.25),
        ),
        (
            table(
                "By delay of the slow rank",
                ("delay", "a step took", "computed without the delay", "who made others wait", "they waited, in all"),
                rows,
            ),
        ),
    )


def draw(results: Results, figure: Figure) -> None:
    by_delay = {delay: explain_delay(results[f"{delay} ms"]) for delay in DELAYS_MS}
    left, right = figure.subplots(1, 2)
    steps, without = ([each[key] * 1e3 for each in by_delay.values()] for key in ("step_s", "what_if_step_s"))
    left.plot(DELAYS_MS, steps, "o-", color=BLUE, label="a step took")
    least = [COMPUTE_S * 1e3 + delay for delay in DELAYS_MS]
    left.plot(DELAYS_MS, least, ":", color=GREY, label="computation + delay: the minimum")
    left.plot(DELAYS_MS, without, "^--", color=ORANGE, label="without the delay, from the recording")
    left.set(title="One slow rank slows all", xlabel="delay of one rank (ms)", ylabel="milliseconds per step")
    left.set_xticks(DELAYS_MS)
    left.set_ylim(0)
    left.legend(fontsize=8)
    left.grid(axis="y")
    waited = by_delay[DELAYS_MS[-1]]["suffered_s"]
    for rank, seconds in waited.items():
        right.barh(rank, seconds, color=colour_of(rank), height=0.6)
        right.text(seconds, rank, f"  waited {in_seconds(seconds)}", va="center", size=9)
    label_ranks(right, len(waited))
    right.margins(x=0.35)
    title = f"Who waits, with {DELAYS_MS[-1]} ms: all but the slow rank"
    right.set(title=title, xlabel="seconds spent waiting for others")


EXPERIMENT = Experiment(measure, judge, draw, trials=40, cases=CASES, code_on_page=(step, measure, explain_delay))
