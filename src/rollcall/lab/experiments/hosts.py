"""python -m rollcall.lab.experiments.hosts

What does a second machine cost? The same job on as many ranks, three times: on one host; on two with a link of 1
Gbit/s between them; and with one of 100 Mbit/s. The two hosts are virtual, each with a network of its own, so all
of it happens on this machine, and only the network differs.
"""

import time
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from rollcall import World
from rollcall.lab.experiment import Case, Results, Table, Verdict, always, in_bytes, in_time, usually
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
    began = time.monotonic()
    dist.all_reduce(tensor)
    return time.monotonic() - began


def time_step(gradient: torch.Tensor, world: World) -> float:
    """A step of training as the network sees it: compute for a while, then add up the gradients."""
    world.barrier()
    began = time.monotonic()
    time.sleep(COMPUTE_S)
    dist.all_reduce(gradient)
    return time.monotonic() - began


def measure(world: World, case: str, trials: int) -> dict[str, Any]:
    small, gradient = torch.ones(1, device=world.device), torch.ones(GRADIENT_BYTES // 4, device=world.device)
    dist.all_reduce(gradient.clone())  # the first one warms up
    seconds: dict[str, list[float]] = {"4 B": [], "1 MB": [], "step": []}
    for _ in track(range(trials)):
        seconds["4 B"].append(time_all_reduce(small, world))
        seconds["1 MB"].append(time_all_reduce(gradient.fill_(1), world))
        seconds["step"].append(time_step(gradient.fill_(1), world))
    return {"seconds": seconds, "host": world.info.hostname, "node": world.info.node_rank, "sum": gradient[-1].item()}


def medians(ending: dict[str, Any]) -> dict[str, float]:
    """By kind: the median over trials of the slowest rank's time."""
    by_rank = [value["seconds"] for value in ending["values"]]
    return {
        kind: median([max(trial) for trial in zip(*(r[kind] for r in by_rank), strict=True)]) for kind in by_rank[0]
    }


def judge(results: Results) -> Verdict:
    times = {case: medians(ending) for case, ending in results.items()}
    ranks = len(results["one host"]["values"])
    # In a ring over two hosts, each direction of the link carries what one rank sends.
    carried = GRADIENT_BYTES * 2 * (ranks - 1) / ranks
    at_least = {case: carried * 8 / bits for case, bits in BITS_PER_S.items()}
    nodes = {case: len({value["node"] for value in ending["values"]}) for case, ending in results.items()}
    sums = {value["sum"] for ending in results.values() for value in ending["values"]}
    here, fast, slow = (times[case.name] for case in CASES)
    return Verdict(
        f"a step of {in_time(COMPUTE_S)} computing and {in_bytes(GRADIENT_BYTES)} of gradients takes"
        f" {in_time(here['step'])} on one host; on two with a link of 1 Gbit/s {in_time(fast['step'])}, of 100 Mbit/s"
        f" {in_time(slow['step'])}: {slow['step'] / here['step']:.1f} times as long. The slower link alone needs"
        f" {in_time(at_least['two hosts, 100 Mbit/s'])} for the {in_bytes(carried)} that cross it",
        {"times_s": times, "link_needs_s": at_least, "hosts": nodes},
        (
            always("the sums are right, wherever the ranks are", sums == {float(ranks)}),
            always("the ranks sat where they should", nodes == {case.name: case.virtual_hosts or 1 for case in CASES}),
            usually("the slower the link, the longer the all_reduce", here["1 MB"] < fast["1 MB"] < slow["1 MB"]),
            usually(
                "at 100 Mbit/s the link is what takes the time", slow["1 MB"] >= 0.8 * at_least["two hosts, 100 Mbit/s"]
            ),
        ),
        (
            Table(
                "Median time of the slowest rank",
                ("where", "all_reduce of 4 B", "all_reduce of 1 MB", "the link alone needs", "a step"),
                tuple(
                    (
                        case,
                        in_time(t["4 B"]),
                        in_time(t["1 MB"]),
                        in_time(at_least[case]) if case in at_least else "—",
                        in_time(t["step"]),
                    )
                    for case, t in times.items()
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
    axes.barh([0], [0], color=ORANGE, label="computing")
    axes.barh([0], [0], color=BLUE, label="all_reduce of 1 MB")
    axes.plot([], [], color=GREY, lw=2, label="what the link alone needs")
    axes.set_yticks(range(len(times)), list(times))
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.12)
    axes.set_xlabel("milliseconds per step")
    axes.set_title(f"The same step, {ranks} ranks")
    axes.legend(loc="upper right")


CODE_ON_PAGE = (measure, time_step, medians)
NEXT = (
    "`rollcall run --virtual-hosts 2 --link 100mbit train.py`: your own program on such a network",
    "`rollcall lab overlap`: how to hide it",
    "two real machines: `rollcall run --hosts alpha:2,beta:2 -m rollcall.lab.experiments.bandwidth`",
)

if __name__ == "__main__":
    main(__file__)
