"""rollcall lab hosts

What does a second machine cost? The same job on the same number of ranks, three times: on one host; on two hosts with
a link of 1 Gbit/s; and with a link of 100 Mbit/s. The two hosts are virtual, each with its own network, so all ranks
run on this machine, and only the network differs.
"""

import time
from typing import Any

import torch
import torch.distributed as dist

from rollcall import World
from rollcall.lab.experiment import Case, Experiment, Results, Verdict, always, median_of_slowest, table, usually
from rollcall.lab.measuring import Work, time_once
from rollcall.lab.plots import BLUE, GREY, ORANGE, Figure, label_rows
from rollcall.lab.progress import track
from rollcall.units import in_binary_bytes, in_seconds

COMPUTE_S = 0.010
GRADIENT_BYTES = 1 << 20
CASES = (
    Case("one host", "all ranks on one host"),
    Case("two hosts, 1 Gbit/s", "two hosts, 1 Gbit/s between them", virtual_hosts=2, link="1gbit"),
    Case("two hosts, 100 Mbit/s", "two hosts, 100 Mbit/s between them", virtual_hosts=2, link="100mbit"),
)
BITS_PER_S = {"two hosts, 1 Gbit/s": 1e9, "two hosts, 100 Mbit/s": 1e8}


def step(gradient: torch.Tensor) -> None:
    """A training step: compute for a while, then add up the gradients."""
    time.sleep(COMPUTE_S)
    dist.all_reduce(gradient)


def measure(world: World, case: str, trials: int) -> dict[str, Any]:
    small, gradient = torch.ones(1, device=world.device), torch.ones(GRADIENT_BYTES // 4, device=world.device)
    dist.all_reduce(gradient.clone())  # warm-up
    ways: dict[str, Work] = {
        "4 B": lambda: dist.all_reduce(small),
        "1 MB": lambda: dist.all_reduce(gradient),
        "step": lambda: step(gradient),
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in track(range(trials)):
        for name, way in ways.items():
            gradient.fill_(1)
            world.barrier()
            seconds[name].append(time_once(way, world.device))
    return {"seconds": seconds, "host": world.info.hostname, "node": world.info.node_rank, "sum": gradient[-1].item()}


def medians(ending: dict[str, Any]) -> dict[str, float]:
    """By kind: the median over trials of the slowest rank's time."""
    by_rank = [value["seconds"] for value in ending["values"]]
    return {kind: median_of_slowest(seconds[kind] for seconds in by_rank) for kind in by_rank[0]}


def link_needs(ranks: int) -> dict[str, float]:
    """The least seconds that each link needs for the gradients."""
    # In a ring over two hosts, each direction of the link carries as much as one rank sends.
    carried_bits = 8 * GRADIENT_BYTES * 2 * (ranks - 1) / ranks
    return {case: carried_bits / bits_per_s for case, bits_per_s in BITS_PER_S.items()}


def judge(results: Results) -> Verdict:
    times = {case: medians(ending) for case, ending in results.items()}
    ranks = len(results["one host"]["values"])
    at_least = link_needs(ranks)
    slowest_link = at_least["two hosts, 100 Mbit/s"]
    nodes = {case: len({value["node"] for value in ending["values"]}) for case, ending in results.items()}
    sums = {value["sum"] for ending in results.values() for value in ending["values"]}
    here, fast, slow = (times[case.name] for case in CASES)
    rows = []
    for case, each in times.items():
        link = in_seconds(at_least[case]) if case in at_least else "—"
        rows.append((case, in_seconds(each["4 B"]), in_seconds(each["1 MB"]), link, in_seconds(each["step"])))
    return Verdict(
        f"a step with {in_seconds(COMPUTE_S)} of computation and {in_binary_bytes(GRADIENT_BYTES)} of gradients takes"
        f" {in_seconds(here['step'])} on one host; on two with a link of 1 Gbit/s {in_seconds(fast['step'])}, with"
        f" 100 Mbit/s {in_seconds(slow['step'])}, {slow['step'] / here['step']:.1f} times as long. The slower link"
        f" alone needs {in_seconds(slowest_link)} for what it carries",
        {"times_s": times, "link_needs_s": at_least, "hosts": nodes},
        (
            always("the sums are right on all hosts", sums == {float(ranks)}),
            always("the ranks ran on the right hosts", nodes == {case.name: case.virtual_hosts or 1 for case in CASES}),
            usually("the slower the link, the longer the all_reduce", here["1 MB"] < fast["1 MB"] < slow["1 MB"]),
            usually("at 100 Mbit/s the link takes most of the time", slow["1 MB"] >= 0.8 * slowest_link),
        ),
        (
            table(
                "Median time of the slowest rank",
                ("where", "all_reduce of 4 B", "all_reduce of 1 MiB", "the link alone needs", "a step"),
                rows,
            ),
        ),
    )


def draw(results: Results, figure: Figure) -> None:
    ranks = len(results["one host"]["values"])
    least, computed_ms = link_needs(ranks), COMPUTE_S * 1e3
    axes = figure.add_subplot()
    for row, (case, ending) in enumerate(results.items()):
        step_s = medians(ending)["step"]
        axes.barh(row, computed_ms, color=ORANGE, height=0.55)
        axes.barh(row, step_s * 1e3 - computed_ms, left=computed_ms, color=BLUE, height=0.55)
        axes.text(step_s * 1e3, row, f"  {in_seconds(step_s)}", va="center", weight="bold")
        if case in least:
            axes.plot([computed_ms + least[case] * 1e3] * 2, [row - 0.38, row + 0.38], color=GREY, lw=2)
    axes.legend([*axes.patches[:2], *axes.lines[:1]], ["computation", "all_reduce of 1 MiB", "minimum for this link"])
    label_rows(axes, results)
    axes.margins(x=0.12)
    axes.set(title=f"The same step, {ranks} ranks", xlabel="milliseconds per step")


EXPERIMENT = Experiment(measure, judge, draw, trials=5, cases=CASES, code_on_page=(measure, step, medians))
