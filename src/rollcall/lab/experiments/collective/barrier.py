"""rollcall lab barrier

Does order hold without a barrier? Every rank writes a message, and then has a result. Without a barrier no rank waits
for another, so one rank's result may come before another rank's message. With a barrier between the two it never does.

An inversion is a trial in which some rank's result came before another rank's message. We count inversions, and measure
by how much; once with all ranks alike, and once with a rank that comes late.
"""

import time
from pathlib import Path
from statistics import median
from typing import Any

from rollcall import World
from rollcall.errors import UsageError
from rollcall.lab.experiment import Experiment, Results, Verdict, always, table, usually
from rollcall.lab.plots import BLUE, GREY, RED, Axes, Figure, colour_of, label_ranks, label_rows
from rollcall.lab.progress import track
from rollcall.units import in_seconds

SLOW_S = 0.003
NO_BARRIER = "I HAVE NO BARRIER DUDE!"
BARRIER = "I HAVE BARRIER DUDE! WAITING FOR ALL PROCESSES TO SYNCHRONIZE..."
VARIANTS = {  # with a barrier? with a rank that comes late?
    "no barrier": (False, False),
    "no barrier, slow rank": (False, True),
    "barrier": (True, False),
    "barrier, slow rank": (True, True),
}


def trial(world: World, with_barrier: bool, is_late: bool) -> list[int]:
    """When this rank wrote its message, when it left the barrier, and when it had its result (nanoseconds)."""
    if is_late:
        time.sleep(SLOW_S)
    message_ns = time.monotonic_ns()
    if with_barrier:
        world.barrier()
    left_ns = time.monotonic_ns()
    results = []
    results.append([1, 2, 3])
    return [message_ns, left_ns, time.monotonic_ns()]


def measure(world: World, trials: int) -> dict[str, Any]:
    """All four variants in every trial, so that disturbances on this machine affect all of them."""
    times: dict[str, list[list[int]]] = {variant: [] for variant in VARIANTS}
    slow_rank = world.size - 1
    for _ in track(range(trials)):
        for variant, (with_barrier, has_slow_rank) in VARIANTS.items():
            world.barrier()  # all start together
            times[variant].append(trial(world, with_barrier, has_slow_rank and world.rank == slow_rank))
    # One machine has one monotonic clock, so the times of all its ranks can be compared.
    machine = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return {"times": times, "machine": machine}


def leads(results: Results, variant: str) -> list[float]:
    """Per trial: by how many seconds the first result came before the last message. Negative: all was in order."""
    by_trial = zip(*(result["times"][variant] for result in results), strict=True)
    return [(max(times[0] for times in t) - min(times[2] for times in t)) / 1e9 for t in by_trial]


def waits(results: Results, variant: str) -> list[float]:
    """Per rank: how long it waited at the barrier, in seconds (median)."""
    return [median((left - message) / 1e9 for message, left, _ in result["times"][variant]) for result in results]


def median_trial(results: Results, variant: str) -> list[list[int]]:
    """The times of all ranks in the trial with the median lead."""
    lead = leads(results, variant)
    chosen = sorted(range(len(lead)), key=lead.__getitem__)[len(lead) // 2]
    return [result["times"][variant][chosen] for result in results]


def as_log(times: list[list[int]], message: str) -> list[tuple[str, str]]:
    """The log of a trial, in the order of time: when, and which rank's line."""
    lines = [(ns, f"rank {rank}: {message}") for rank, (ns, _, _) in enumerate(times)]
    lines += [(ns, f"rank {rank}: Results: [[1, 2, 3]]") for rank, (_, _, ns) in enumerate(times)]
    start = min(ns for ns, _ in lines)
    return [(f"{(ns - start) / 1e6:.3f} ms", line) for ns, line in sorted(lines)]


def once(world: World, run_with_no_barrier: bool = False) -> None:
    """Run once, node by node: a message, perhaps a barrier, a result."""
    if run_with_no_barrier:
        world.logger.info(NO_BARRIER)
    else:
        world.logger.info(BARRIER)
        world.barrier()
    results = []
    results.append([1, 2, 3])
    world.logger.info(f"Results: {results}")


def describe(results: Results, variant: str) -> dict[str, Any]:
    """How many trials of a variant were out of order, by how much, and how long each rank waited."""
    inverted = [lead for lead in leads(results, variant) if lead > 0]
    return {
        "inversions": len(inverted),
        "median_lead_s": median(inverted) if inverted else 0.0,
        "largest_lead_s": max(inverted, default=0.0),
        "waited_s": waits(results, variant),
    }


def judge(results: Results) -> Verdict:
    machines = {result["machine"] for result in results}
    if len(machines) > 1:
        raise UsageError(
            f"the ranks are on {len(machines)} machines, whose clocks cannot be compared: use one host, or"
            f" --virtual-hosts"
        )
    trials, last = len(results[0]["times"]["barrier"]), len(results) - 1
    found = {variant: describe(results, variant) for variant in VARIANTS}
    none, slow, held, late = found.values()
    waited = late["waited_s"]
    rows = []
    for variant, each in found.items():
        by = f"{in_seconds(each['median_lead_s'])}, at most {in_seconds(each['largest_lead_s'])}"
        at_barrier = ", ".join(map(in_seconds, each["waited_s"])) if VARIANTS[variant][0] else "—"
        rows.append((variant, f"{each['inversions']} of {trials}", by if each["inversions"] else "—", at_barrier))
    without = as_log(median_trial(results, "no barrier, slow rank"), NO_BARRIER)
    with_it = as_log(median_trial(results, "barrier, slow rank"), BARRIER)
    return Verdict(
        f"without a barrier some rank's result came before another rank's message in {none['inversions']} of {trials}"
        f" trials, by {in_seconds(none['median_lead_s'])} (median), and with a slow rank in {slow['inversions']}, by"
        f" {in_seconds(slow['median_lead_s'])}; with a barrier in {held['inversions']} and {late['inversions']} of"
        f" {trials}. There the others waited {in_seconds(max(waited[:-1]))} for the slow rank {last}, which itself"
        f" waited {in_seconds(waited[-1])}",
        {"trials": trials, "slow_rank": last, "slow_s": SLOW_S, **found},
        (
            always("with a barrier no result comes before a message", held["inversions"] + late["inversions"] == 0),
            usually("without a barrier, some do", none["inversions"] > 0),
            usually("a slow rank makes the gap larger", slow["median_lead_s"] > none["median_lead_s"]),
            usually("at the barrier the slow rank waits least", waited[-1] < min(waited[:-1])),
        ),
        (
            table(
                "A result before another rank's message",
                ("variant", "trials", "by (median)", f"waited at the barrier, rank 0 to {last}"),
                rows,
            ),
            table(
                "The median trials with a slow rank, in the order in which the lines were written",
                ("at", "without a barrier", "at", "with a barrier"),
                ((*one, *other) for one, other in zip(without, with_it, strict=True)),
            ),
        ),
    )


def draw(results: Results, figure: Figure) -> None:
    left, *right = figure.subplot_mosaic([["leads", "without"], ["leads", "with"]], width_ratios=(1, 1.25)).values()
    _draw_leads(results, left)
    right[0].sharex(right[1])
    for axes, variant in zip(right, ("no barrier, slow rank", "barrier, slow rank"), strict=True):
        _draw_trial(median_trial(results, variant), variant, axes)
    right[1].set_xlabel("milliseconds")
    right[1].legend(loc="upper center", ncols=3, fontsize=8, bbox_to_anchor=(0.5, -0.35))


def _draw_leads(results: Results, axes: Axes) -> None:
    for row, variant in enumerate(VARIANTS):
        lead_us = [lead * 1e6 for lead in leads(results, variant)]
        heights = [row - 0.3 + 0.6 * place / len(lead_us) for place in range(len(lead_us))]
        axes.scatter(lead_us, heights, s=6, c=[RED if lead > 0 else BLUE for lead in lead_us], alpha=0.7, lw=0)
    axes.axvline(0, color=GREY, lw=1)
    axes.set_xscale("symlog", linthresh=40)
    axes.set_xticks([-1e4, -1e3, -100, 0, 100, 1e3, 1e4], ["−10", "−1", "−0.1", "0", "0.1", "1", "10"])
    axes.minorticks_off()
    label_rows(axes, VARIANTS)
    axes.set(xlabel="ms from the first result to the last message", title="Each dot is a trial: red, out of order")


def _draw_trial(times: list[list[int]], variant: str, axes: Axes) -> None:
    start = min(message for message, _, _ in times)
    for rank, rank_times in enumerate(times):
        colour = colour_of(rank)
        message, left, result = ((ns - start) / 1e6 for ns in rank_times)
        names = ("waits at the barrier", "message", "result") if rank == 0 else (None, None, None)
        axes.barh(rank, left - message, left=message, height=0.3, color=colour, alpha=0.35, label=names[0])
        axes.scatter(message, rank, marker="o", s=42, color=colour, zorder=3, label=names[1])
        style: Any = {"facecolor": "white", "edgecolor": colour, "lw": 1.8}
        axes.scatter(result, rank, marker="D", s=42, zorder=4, label=names[2], **style)
    label_ranks(axes, len(times))
    axes.use_sticky_edges = False  # room for the dots at 0
    axes.set_title(f"The median trial: {variant}")


EXPERIMENT = Experiment(measure, judge, draw, trials=200, once=once, code_on_page=(trial, measure, leads))
