"""rollcall lab bandwidth

How fast is an all_reduce, from 512 KiB to 1 GiB? Each size is twice the one before, with warm-up and repetitions, on
all ranks.

Algorithm bandwidth is size over time: what your program sees. Bus bandwidth is that times 2(n−1)/n, the share of the
tensor that each rank has to send: it can be compared with the speed of the network, for any number of ranks.
"""

import statistics
import time
from itertools import chain
from typing import Any

import psutil
import torch
import torch.distributed as dist

from rollcall import World
from rollcall.errors import UsageError
from rollcall.lab.experiment import Experiment, Results, Verdict, always, table, usually
from rollcall.lab.measuring import time_once
from rollcall.lab.plots import BLUE, ORANGE, Figure, plain_log
from rollcall.lab.progress import track
from rollcall.units import in_binary_bytes, in_seconds, read_bytes

SMALLEST_BYTES = 512 << 10
WARM_UP = 2
LEAST_TRIALS = 3
BUDGET_S = 20.0  # in all; large sizes get fewer trials if it would take longer
COPIES = 2  # the tensor, and the memory that the backend needs


def read_largest(text: str) -> int:
    size = read_bytes(text)
    if size < SMALLEST_BYTES:
        raise UsageError(f"--largest {text} is not a size of 512 KiB or more: use a number with K, M or G")
    return size


def list_sizes(largest_bytes: int, ranks_here: int) -> list[int]:
    """From 512 KiB on, each twice the one before, up to what was asked for and fits in memory."""
    memory = psutil.virtual_memory().available * 0.6
    sizes, size = [], SMALLEST_BYTES
    while size <= largest_bytes and size * COPIES * ranks_here <= memory:
        sizes.append(size)
        size *= 2
    return sizes


def time_all_reduce(tensor: torch.Tensor, world: World) -> float:
    """The time of one all_reduce, from when all ranks are ready."""
    world.barrier()
    return time_once(lambda: dist.all_reduce(tensor), world.device)


def measure(world: World, trials: int, largest: str = "1G") -> dict[str, Any]:
    """Every size in turn: this rank's seconds. Rank 0 decides for all ranks how often a size is repeated."""
    plan: list[Any] = [list_sizes(read_largest(largest), world.info.local_world_size)]
    dist.broadcast_object_list(plan, device=world.device)
    seconds: dict[str, list[float]] = {}
    began = time.monotonic()
    for number, size in enumerate(track(plan[0])):
        tensor = torch.zeros(size // 4, device=world.device)
        warm = [time_all_reduce(tensor, world) for _ in range(WARM_UP if size < 256 << 20 else 1)]
        left_s = max(0.0, BUDGET_S - (time.monotonic() - began)) / (len(plan[0]) - number)
        count: list[Any] = [max(LEAST_TRIALS, min(trials, int(left_s / warm[-1])))]
        dist.broadcast_object_list(count, device=world.device)
        seconds[str(size)] = [time_all_reduce(tensor, world) for _ in track(range(min(trials, count[0])))]
        del tensor
    return {"seconds": seconds}


def describe(results: Results) -> dict[int, dict[str, float]]:
    """Statistics of every size over all trials and ranks; bandwidths from the mean time of the slowest rank."""
    sent_share = 2 * (len(results) - 1) / len(results)
    found = {}
    for size in sorted(map(int, results[0]["seconds"])):
        by_rank = [result["seconds"][str(size)] for result in results]
        slowest = [max(trial) for trial in zip(*by_rank, strict=True)]
        percentiles = statistics.quantiles(chain(*by_rank), n=100, method="inclusive")
        mean = statistics.fmean(slowest)
        found[size] = {
            "trials": len(slowest),
            "mean_s": mean,
            "sd_s": statistics.stdev(slowest) if len(slowest) > 1 else 0.0,
            **{f"p{share}_s": percentiles[share - 1] for share in (5, 50, 95, 99)},
            "algorithm_bytes_per_s": size / mean,
            "bus_bytes_per_s": size / mean * sent_share,
        }
    return found


def judge(results: Results) -> Verdict:
    stats = describe(results)
    smallest, largest = min(stats), max(stats)
    first, last = stats[smallest], stats[largest]
    best = max(stats, key=lambda size: stats[size]["bus_bytes_per_s"])
    sent_share = 2 * (1 - 1 / len(results))
    shares = [each["bus_bytes_per_s"] / each["algorithm_bytes_per_s"] for each in stats.values()]
    in_time, in_gb = ("mean_s", "sd_s", "p5_s", "p50_s", "p95_s"), ("algorithm_bytes_per_s", "bus_bytes_per_s")
    rows = [
        (
            in_binary_bytes(size),
            each["trials"],
            *(in_seconds(each[name]) for name in in_time),
            *(f"{each[name] / 1e9:.2f}" for name in in_gb),
        )
        for size, each in stats.items()
    ]
    columns = ("size", "trials", "mean", "sd", "p5", "p50", "p95", "algorithm GB/s", "bus GB/s")
    return Verdict(
        f"an all_reduce of {in_binary_bytes(smallest)} takes {in_seconds(first['mean_s'])} ±"
        f" {in_seconds(first['sd_s'])}, one of {in_binary_bytes(largest)} {in_seconds(last['mean_s'])} ±"
        f" {in_seconds(last['sd_s'])} (mean ± sd on {len(results)} ranks); the best bus bandwidth is"
        f" {stats[best]['bus_bytes_per_s'] / 1e9:.2f} GB/s at {in_binary_bytes(best)}",
        {"sizes": {str(size): each for size, each in stats.items()}, "best_bytes": best},
        (
            usually("more bytes take more time", last["mean_s"] > first["mean_s"]),
            always("bus bandwidth is algorithm bandwidth × 2(n−1)/n", all(abs(s - sent_share) < 1e-9 for s in shares)),
        ),
        (table("all_reduce, by size", columns, rows),),
    )


def draw(results: Results, figure: Figure) -> None:
    stats = describe(results)
    left, right = figure.subplots(1, 2)
    places = range(len(stats))
    means_ms, deviations_ms = ([s[name] * 1e3 for s in stats.values()] for name in ("mean_s", "sd_s"))
    left.bar(places, means_ms, yerr=deviations_ms, color=BLUE, capsize=3, error_kw={"lw": 1.2})
    plain_log(left)
    left.set(title=f"Time of an all_reduce, {len(results)} ranks (mean ± sd)", ylabel="milliseconds")
    for shift, name, colour in ((-0.2, "algorithm", ORANGE), (0.2, "bus", BLUE)):
        heights = [s[f"{name}_bytes_per_s"] / 1e9 for s in stats.values()]
        right.bar([place + shift for place in places], heights, 0.4, color=colour, label=name)
    right.set(title="Bandwidth", ylabel="GB/s")
    right.margins(y=0.2)
    right.legend(ncols=2, loc="upper left")
    for axes in (left, right):
        axes.set_xticks(places, map(in_binary_bytes, stats), rotation=45, ha="right")
        axes.grid(axis="y")


EXPERIMENT = Experiment(
    measure,
    judge,
    draw,
    trials=10,
    reported_with={"largest": "16M"},  # for the recorded trial: a timeline gains nothing from gigabytes
    code_on_page=(list_sizes, time_all_reduce, measure, describe),
)
