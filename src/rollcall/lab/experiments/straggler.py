"""python -m rollcall.lab.experiments.straggler

What does one slow rank cost? All ranks compute and then add up, step by step; one of them computes a little longer.
At every all_reduce the others wait for it, so everybody is as slow as the slowest.

Each delay is a run of its own, recorded. From the recording alone we ask who made whom wait, and what the run would
have taken without the delay; the run without a delay tells whether that is right.
"""

import time
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist

from rollcall import World
from rollcall.lab.experiment import Case, Results, Table, Verdict, always, in_time, usually
from rollcall.lab.plots import BLUE, GREY, ORANGE, Figure, colour_of
from rollcall.lab.progress import track
from rollcall.lab.runner.command import main

QUESTION = "what does one slow rank cost?"
TRIALS = 40
COMPUTE_S = 0.004
DELAYS_MS = (0, 2, 5, 10, 20)
CASES = tuple(Case(f"{delay} ms", f"one rank computes {delay} ms longer") for delay in DELAYS_MS)


def step(world: World, delay_s: float) -> None:
    """Compute, then add up what all have computed."""
    is_slow = world.rank == world.size - 1
    time.sleep(COMPUTE_S + (delay_s if is_slow else 0))
    dist.all_reduce(torch.ones(1, device=world.device))


def measure(world: World, case: str, trials: int) -> dict[str, Any]:
    """So many steps: how many, and seconds per step."""
    delay_s = int(case.split()[0]) / 1000
    dist.all_reduce(torch.ones(1, device=world.device))  # the first one warms up
    world.barrier()
    began = time.monotonic()
    for _ in track(range(trials)):
        step(world, delay_s)
    return {"steps": trials, "step_s": (time.monotonic() - began) / trials}


def explain_arm(ending: dict[str, Any]) -> dict[str, Any]:
    """From the recording: who made the others wait, how long, and what a step would take without that."""
    caused = {row["rank"]: row["caused_s"] for row in ending["waits"]}
    suffered = {row["rank"]: row["suffered_s"] for row in ending["waits"]}
    slowest = max(caused, key=caused.__getitem__)
    # All others wait for the last one at once: of their waiting together, the run only loses one's share.
    lost_s = caused[slowest] / (len(caused) - 1)
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
    told = {delay: explain_arm(results[f"{delay} ms"]) for delay in DELAYS_MS}
    base, most = told[0], told[DELAYS_MS[-1]]
    large = [delay for delay in DELAYS_MS if delay >= 5]
    named = [delay for delay in large if told[delay]["slowest"] == slow]
    off = max(abs(told[delay]["what_if_step_s"] / base["step_s"] - 1) for delay in large)
    verdict = results[f"{DELAYS_MS[-1]} ms"]["verdict"]
    others = [most["suffered_s"][rank] for rank in most["suffered_s"] if rank != slow]
    wait = sum(others) / len(others) / steps
    return Verdict(
        f"one rank that is {DELAYS_MS[-1]} ms slower costs all {ranks} ranks"
        f" {in_time(most['step_s'] - base['step_s'])} per step, which takes {in_time(most['step_s'])} in place of"
        f" {in_time(base['step_s'])}. The recording names rank {most['slowest']}: each of the others waited"
        f" {in_time(wait)} per step for it. Without it, says the recording, a step would take"
        f" {in_time(most['what_if_step_s'])}; the run without a delay took {in_time(base['step_s'])} (over all delays"
        f" from 5 ms on, off by at most {off:.0%})",
        {
            "slow_rank": slow,
            "steps": steps,
            "by_delay_ms": {str(delay): each for delay, each in told.items()},
            "what_if_off_by": off,
            "explain": verdict["kind"] if verdict else None,
        },
        (
            always("the recording names the slow rank", most["slowest"] == slow),
            usually("it does so at every delay from 5 ms on", named == large),
            usually(
                "the longer the delay, the longer the step",
                all(told[a]["step_s"] < told[b]["step_s"] for a, b in pairwise(large)),
            ),
            usually("what-if comes within a quarter of what a run without the delay took", off < 0.25),
        ),
        (
            Table(
                "By delay of the slow rank",
                (
                    "delay",
                    "a step took",
                    "without it, says the recording",
                    "who made others wait",
                    "they waited, all together",
                ),
                tuple(
                    (
                        f"{delay} ms",
                        in_time(each["step_s"]),
                        in_time(each["what_if_step_s"]),
                        f"rank {each['slowest']}",
                        in_time(each["caused_s"][each["slowest"]]),
                    )
                    for delay, each in told.items()
                ),
            ),
        ),
    )


def draw(results: Results, figure: Figure) -> None:
    told = {delay: explain_arm(results[f"{delay} ms"]) for delay in DELAYS_MS}
    left, right = figure.subplots(1, 2)
    steps = [told[delay]["step_s"] * 1e3 for delay in DELAYS_MS]
    left.plot(DELAYS_MS, steps, "o-", color=BLUE, label="a step took")
    least = [COMPUTE_S * 1e3 + delay for delay in DELAYS_MS]
    left.plot(DELAYS_MS, least, ":", color=GREY, label="computing + delay: it cannot be less")
    left.plot(
        DELAYS_MS, [told[delay]["what_if_step_s"] * 1e3 for delay in DELAYS_MS], "^--", color=ORANGE,
        label="what-if: without the delay, from the recording",
    )  # fmt: skip
    left.set_ylim(0)
    left.set_xticks(DELAYS_MS)
    left.set_xlabel("delay of one rank (ms)")
    left.set_ylabel("milliseconds per step")
    left.set_title("One slow rank slows all")
    left.legend(fontsize=8)
    left.grid(axis="y")
    most = told[DELAYS_MS[-1]]
    for rank in sorted(most["suffered_s"]):
        right.barh(rank, most["suffered_s"][rank], color=colour_of(rank), height=0.6)
        right.text(most["suffered_s"][rank], rank, f"  waited {in_time(most['suffered_s'][rank])}", va="center", size=9)
    right.set_yticks(sorted(most["suffered_s"]), [f"rank {rank}" for rank in sorted(most["suffered_s"])])
    right.invert_yaxis()
    right.margins(x=0.35)
    right.tick_params(axis="y", length=0)
    right.set_xlabel("seconds spent waiting for others")
    right.set_title(f"Who waits, with {DELAYS_MS[-1]} ms: not the slow one")


CODE_ON_PAGE = (step, measure, explain_arm)
NEXT = (
    "`rollcall explain` says the same of any run of yours: who was last, and what the others waited",
    "let another rank be slow in every step, in turn: the cost is the same, and nobody stands out",
    "`rollcall lab straggler -n 8`: the cost does not shrink with more ranks",
)

if __name__ == "__main__":
    main(__file__)
