"""python -m rollcall.lab.experiments.hosts

What does a second machine cost? The same job on the same number of ranks, three times: on one host; on two hosts with
a link of 1 Gbit/s; and with a link of 100 Mbit/s. The two hosts are virtual, each with its own network, so all ranks
run on this machine, and only the network differs.
"""

import time
from typing import Any

import torch
import torch.distributed as dist

from rollcall import World
from rollcall.lab.experiment import Case, Results, Verdict, always, in_bytes, in_time, median_of_slowest, table, usually
from rollcall.lab.plots import BLUE, GREY, ORANGE, Figure
from rollcall.lab.progress import track
from rollcall.lab.runner.command import main

QUESTION = "what does a second machine cost?"
TRIALS = 5
COMPUTE_S = 0.010
GRADIENT_BYTES = 1 << 20
CASES = (
    Case("one host", "all ranks on one host"),
    Case("two hosts, 1 Gbit/s", "two hosts, 1 Gbit/s between them", virtual_hosts=2, link="1gbit"),
    Case("two hosts, 100 Mbit/s", "two hosts, 100 Mbit/s between them", virtual_hosts=2, link="100mbit"),
)
BITS_PER_S = {"two hosts, 1 Gbit/s": 1e9, "two hosts, 100 Mbit/s": 1e8}


def time_all_reduce(tensor: torch.Tensor, world: World) -> float:
    world.barrier()
    start_s = time.monotonic()
    dist.all_reduce(tensor)
    return time.monotonic() - start_s


def time_step(gradient: torch.Tensor, world: World) -> float:
    """A training step: compute for a while, then add up the gradients."""
    world.barrier()
    start_s = time.monotonic()
    time.sleep(COMPUTE_S)
    dist.all_reduce(gradient)
    return time.monotonic() - start_s


def measure(world: World, case: str, trials: int) -> dict[str, Any]:
    small, gradient = torch.ones(1, device=world.device), torch.ones(GRADIENT_BYTES // 4, device=world.device)
    dist.all_reduce(gradient.clone())  # warm-up
    seconds: dict[str, list[float]] = {"4 B": [], "1 MB": [], "step": []}
    for _ in track(range(trials)):
        seconds["4 B"].append(time_all_reduce(small, world))
        seconds["1 MB"].append(time_all_reduce(gradient.fill_(1), world))
        seconds["step"].append(time_step(gradient.fill_(1), world))
    return {"seconds": seconds, "host": world.info.hostname, "node": world.info.node_rank, "sum": gradient[-1].item()}


def medians(ending: dict[str, Any]) -> dict[str, float]:
    """By kind: the median over trials of the slowest rank's time."""
    by_rank = [value["seconds"] for value in ending["values"]]
    return {kind: median_of_slowest(seconds[kind] for seconds in by_rank) for kind in by_rank[0]}


def judge(results: Results) -> Verdict:
    times = {case: medians(ending) for case, ending in results.items()}
    ranks = len(results["one host"]["values"])
    # In a ring over two hosts, each direction of the link carries as much as one rank sends.
    carried = GRADIENT_BYTES * 2 * (ranks - 1) / ranks
    at_least = {case: carried * 8 / bits for case, bits in BITS_PER_S.items()}
    nodes = {case: len({value["node"] for value in ending["values"]}) for case, ending in results.items()}
    sums = {value["sum"] for ending in results.values() for value in ending["values"]}
    here, fast, slow = (times[case.name] for case in CASES)
    return Verdict(
        f"a step with {in_time(COMPUTE_S)} of computation and {in_bytes(GRADIENT_BYTES)} of gradients takes"
        f" {in_time(here['step'])} on one host; on two with a link of 1 Gbit/s {in_time(fast['step'])}, with 100 Mbit/s"
        f" {in_time(slow['step'])}, {slow['step'] / here['step']:.1f} times as long. The slower link alone needs"
        f" {in_time(at_least['two hosts, 100 Mbit/s'])} for the {in_bytes(carried)} that it carries",
        {"times_s": times, "link_needs_s": at_least, "hosts": nodes},
        (
            always("the sums are right on all hosts", sums == {float(ranks)}),
            always("the ranks ran on the right hosts", nodes == {case.name: case.virtual_hosts or 1 for case in CASES}),
            usually("the slower the link, the longer the all_reduce", here["1 MB"] < fast["1 MB"] < slow["1 MB"]),
            usually(
                "at 100 Mbit/s the link takes most of the time",
                slow["1 MB"] >= 0.8 * at_least["two hosts, 100 Mbit/s"],
            ),
        ),
        (
            table(
                "Median time of the slowest rank",
                ("where", "all_reduce of 4 B", "all_reduce of 1 MB", "the link alone needs", "a step"),
                (
                    (case, in_time(t["4 B"]), in_time(t["1 MB"]), link, in_time(t["step"]))
                    for case, t in times.items()
                    for link in [in_time(at_least[case]) if case in at_least else "—"]
                ),
            ),
        ),
    )


def draw(results: Results, figure: Figure) -> None:
    times = {case: medians(ending) for case, ending in results.items()}
    axes = figure.add_subplot()
    for row, each in enumerate(times.values()):
        waited_ms = max(0.0, each["step"] - COMPUTE_S) * 1e3
        axes.barh(row, COMPUTE_S * 1e3, color=ORANGE, height=0.55)
        axes.barh(row, waited_ms, left=COMPUTE_S * 1e3, color=BLUE, height=0.55)
        axes.text(each["step"] * 1e3, row, f"  {in_time(each['step'])}", va="center", weight="bold")
    ranks = len(results["one host"]["values"])
    for case, bits in BITS_PER_S.items():
        least_ms = COMPUTE_S * 1e3 + GRADIENT_BYTES * 2 * (ranks - 1) / ranks * 8 / bits * 1e3
        row = list(times).index(case)
        axes.plot([least_ms] * 2, [row - 0.38, row + 0.38], color=GREY, lw=2)
    axes.barh([0], [0], color=ORANGE, label="computation")
    axes.barh([0], [0], color=BLUE, label="all_reduce of 1 MB")
    axes.plot([], [], color=GREY, lw=2, label="minimum for this link")
    axes.set_yticks(range(len(times)), list(times))
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel("milliseconds per step")
    axes.set_title(f"The same step, {ranks} ranks")
    axes.legend(loc="upper right")


CODE_ON_PAGE = (measure, time_step, medians)
NEXT = (
    "`rollcall run --virtual-hosts 2 --link 100mbit train.py`: your own program on such a network",
    "`rollcall lab overlap`: how to communicate while computing",
    "two real machines: `rollcall run --hosts alpha:2,beta:2 -m rollcall.lab.experiments.bandwidth`",
)

if __name__ == "__main__":
    main(__file__)
