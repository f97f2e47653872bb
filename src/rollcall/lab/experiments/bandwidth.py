"""python -m rollcall.lab.experiments.bandwidth

How fast is an all_reduce? From 512 KB to 1 GB, each size twice the one before, with warm-up and repetitions, on all
ranks.

Algorithm bandwidth is size over time: what your program sees. Bus bandwidth is that times 2(n−1)/n, the share of the
tensor that each rank has to send: it can be compared with the speed of the network, for any number of ranks.
"""

import re
import statistics
import time
from typing import Any

import psutil
import torch
import torch.distributed as dist

from rollcall import World
from rollcall.errors import UsageError
from rollcall.lab.experiment import Results, Verdict, always, in_bytes, in_time, table, usually
from rollcall.lab.plots import BLUE, ORANGE, Figure, plain_log
from rollcall.lab.progress import track
from rollcall.lab.runner.command import main

QUESTION = "how fast is an all_reduce, from 512 KB to 1 GB?"
TRIALS = 10
SMALLEST_BYTES = 512 << 10
LARGEST_BYTES = 1 << 30
WARM_UP = 2
LEAST_TRIALS = 3
BUDGET_S = 20.0  # in all; large sizes get fewer trials if it would take longer
REPORTED_WITH = {"largest": "16MB"}  # for the recorded trial: a timeline gains nothing from gigabytes
COPIES = 2  # the tensor, and the memory that the backend needs


def read_size(text: str) -> int:
    """The bytes of a size such as 64MB."""
    match = re.fullmatch(r"(\d+)\s*(KB|MB|GB)", text.strip().upper())
    size = int(match[1]) << {"KB": 10, "MB": 20, "GB": 30}[match[2]] if match else 0
    if size < SMALLEST_BYTES:
        raise UsageError(f"--largest {text} is not a size of 512KB or more: use a number with KB, MB or GB")
    return size


def list_sizes(largest_bytes: int, ranks_here: int) -> list[int]:
    """From 512 KB on, each twice the one before, up to what was asked for and fits in memory."""
    memory = psutil.virtual_memory().available * 0.6
    sizes, size = [], SMALLEST_BYTES
    while size <= largest_bytes and size * COPIES * ranks_here <= memory:
        sizes.append(size)
        size *= 2
    return sizes


def time_once(tensor: torch.Tensor, world: World) -> float:
    """The time of one all_reduce, from when all ranks are ready."""
    world.barrier()
    began = time.monotonic()
    dist.all_reduce(tensor)
    if tensor.device.type == "cuda":
        torch.cuda.synchronize()
    return time.monotonic() - began


def measure(world: World, trials: int, largest: str = "1GB") -> dict[str, Any]:
    """Every size in turn: this rank's seconds. Rank 0 decides for all ranks how often a size is repeated."""
    plan: list[Any] = [list_sizes(read_size(largest), world.info.local_world_size)]
    dist.broadcast_object_list(plan, device=world.device)
    seconds: dict[str, list[float]] = {}
    began = time.monotonic()
    for number, size in enumerate(track(plan[0])):
        tensor = torch.zeros(size // 4, device=world.device)
        warm = [time_once(tensor, world) for _ in range(WARM_UP if size < 256 << 20 else 1)]
        left_s = max(0.0, BUDGET_S - (time.monotonic() - began)) / (len(plan[0]) - number)
        count: list[Any] = [max(LEAST_TRIALS, min(trials, int(left_s / warm[-1])))]
        dist.broadcast_object_list(count, device=world.device)
        seconds[str(size)] = [time_once(tensor, world) for _ in track(range(min(trials, count[0])))]
        del tensor
    return {"seconds": seconds}


def describe(results: Results, size: str) -> dict[str, float]:
    """Statistics of one size over all trials and ranks; bandwidths from the mean time of the slowest rank."""
    times = [seconds for result in results for seconds in result["seconds"][size]]
    slowest = [max(trial) for trial in zip(*(result["seconds"][size] for result in results), strict=True)]
    percentiles = statistics.quantiles(times, n=100, method="inclusive")
    mean = statistics.fmean(slowest)
    ranks = len(results)
    return {
        "trials": len(slowest),
        "mean_s": mean,
        "sd_s": statistics.stdev(slowest) if len(slowest) > 1 else 0.0,
        **{f"p{share}_s": percentiles[share - 1] for share in (5, 50, 95, 99)},
        "algorithm_bytes_per_s": int(size) / mean,
        "bus_bytes_per_s": int(size) / mean * 2 * (ranks - 1) / ranks,
    }


def judge(results: Results) -> Verdict:
    sizes = sorted(map(int, results[0]["seconds"]))
    stats = {size: describe(results, str(size)) for size in sizes}
    first, last = stats[sizes[0]], stats[sizes[-1]]
    best = max(sizes, key=lambda size: stats[size]["bus_bytes_per_s"])
    return Verdict(
        f"an all_reduce of {in_bytes(sizes[0])} takes {in_time(first['mean_s'])} ± {in_time(first['sd_s'])}, one of"
        f" {in_bytes(sizes[-1])} {in_time(last['mean_s'])} ± {in_time(last['sd_s'])} (mean ± sd on {len(results)}"
        f" ranks); the best bus bandwidth is {stats[best]['bus_bytes_per_s'] / 1e9:.2f} GB/s at {in_bytes(best)}",
        {"sizes": {str(size): each for size, each in stats.items()}, "best_bytes": best},
        (
            usually("more bytes take more time", last["mean_s"] > first["mean_s"]),
            always(
                "bus bandwidth is algorithm bandwidth × 2(n−1)/n",
                all(
                    abs(s["bus_bytes_per_s"] / s["algorithm_bytes_per_s"] - 2 * (1 - 1 / len(results))) < 1e-9
                    for s in stats.values()
                ),
            ),
        ),
        (
            table(
                "all_reduce, by size",
                ("size", "trials", "mean", "sd", "p5", "p50", "p95", "algorithm GB/s", "bus GB/s"),
                (
                    (
                        in_bytes(size),
                        s["trials"],
                        *(in_time(s[name]) for name in ("mean_s", "sd_s", "p5_s", "p50_s", "p95_s")),
                        *(f"{s[name] / 1e9:.2f}" for name in ("algorithm_bytes_per_s", "bus_bytes_per_s")),
                    )
                    for size, s in stats.items()
                ),
            ),
        ),
    )


def draw(results: Results, figure: Figure) -> None:
    sizes = sorted(map(int, results[0]["seconds"]))
    stats = [describe(results, str(size)) for size in sizes]
    left, right = figure.subplots(1, 2)
    places = range(len(sizes))
    means_ms, deviations_ms = ([s[name] * 1e3 for s in stats] for name in ("mean_s", "sd_s"))
    left.bar(places, means_ms, yerr=deviations_ms, color=BLUE, capsize=3, error_kw={"lw": 1.2})
    plain_log(left)
    left.set_ylabel("milliseconds")
    left.set_title(f"Time of an all_reduce, {len(results)} ranks (mean ± sd)")
    for shift, name, colour in ((-0.2, "algorithm", ORANGE), (0.2, "bus", BLUE)):
        heights = [s[f"{name}_bytes_per_s"] / 1e9 for s in stats]
        right.bar([place + shift for place in places], heights, 0.4, color=colour, label=name)
    right.set_ylabel("GB/s")
    right.set_title("Bandwidth")
    right.margins(y=0.2)
    right.legend(ncols=2, loc="upper left")
    for axes in (left, right):
        axes.set_xticks(list(places), [in_bytes(size) for size in sizes], rotation=45, ha="right")
        axes.grid(axis="y")


CODE_ON_PAGE = (list_sizes, time_once, measure, describe)
NEXT = (
    "`rollcall lab bandwidth --trials 50 --largest 64MB`: more trials of fewer sizes",
    "`rollcall lab bandwidth --virtual-hosts 2 -n 2`: the same over a network",
    "`rollcall lab hosts`: with a link of 1 Gbit/s and of 100 Mbit/s",
)

if __name__ == "__main__":
    main(__file__)
