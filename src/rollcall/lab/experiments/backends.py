"""python -m rollcall.lab.experiments.backends

Is gloo slower than nccl, and why? Gloo works in the CPU's memory: a tensor on a GPU has to be copied to the CPU,
reduced over the network, and copied back. NCCL moves it from GPU to GPU.

On a machine with GPUs we measure all of it: the copies, gloo on tensors of the GPU and of the CPU, and nccl, which
needs a GPU for each rank. On a machine without GPUs we measure the CPU's part: gloo's all_reduce, and a copy.
"""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from rollcall import World
from rollcall.lab.experiment import Results, Verdict, in_bytes, in_time, median_of_slowest, plural, table, usually
from rollcall.lab.plots import Figure, colour_of, plain_log
from rollcall.lab.progress import track
from rollcall.lab.runner.command import main

QUESTION = "is gloo slower than nccl, and why?"
TRIALS = 5
LEAST_RANKS = 1
SIZES_BYTES = (64 << 10, 1 << 20, 16 << 20)


def choose_gpu(world: World) -> torch.device | None:
    """This rank's GPU; ranks share one if there are too few. None on a machine without GPUs."""
    if not torch.cuda.is_available():
        return None
    return torch.device("cuda", world.info.local_rank % torch.cuda.device_count())


def make_group(backend: str, world: World) -> Any:
    """A group with this backend, or None if it is not possible: nccl needs a GPU for each rank."""
    if not dist.is_backend_available(backend):
        return None
    if backend == "nccl" and torch.cuda.device_count() < world.info.local_world_size:
        return None
    return dist.new_group(backend=backend)


def time_once(work: Callable[[], Any], gpu: torch.device | None) -> float:
    """How long it takes, in seconds. A GPU is still at work when the call returns, so we wait for it."""
    if gpu is not None:
        torch.cuda.synchronize(gpu)
    start_s = time.monotonic()
    work()
    if gpu is not None:
        torch.cuda.synchronize(gpu)
    return time.monotonic() - start_s


def make_ways(size_bytes: int, gpu: torch.device | None, gloo: Any, nccl: Any) -> dict[str, Callable[[], Any]]:
    """Everything that this machine can do with a tensor of this size, by name."""
    on_cpu = torch.ones(size_bytes // 4)
    other = torch.empty_like(on_cpu)
    ways: dict[str, Callable[[], Any]] = {
        "copy CPU to CPU": lambda: other.copy_(on_cpu),
        "gloo, CPU tensor": lambda: dist.all_reduce(on_cpu, group=gloo),
    }
    if gpu is None:
        return ways
    on_gpu = torch.ones(size_bytes // 4, device=gpu)
    pinned = torch.ones(size_bytes // 4, pin_memory=True)  # as gloo uses it: the GPU can access it directly
    ways["copy GPU to CPU"] = lambda: pinned.copy_(on_gpu)
    ways["copy CPU to GPU"] = lambda: on_gpu.copy_(pinned)
    ways["gloo, GPU tensor"] = lambda: dist.all_reduce(on_gpu, group=gloo)
    if nccl is not None:
        ways["nccl, GPU tensor"] = lambda: dist.all_reduce(on_gpu, group=nccl)
    return ways


def measure(world: World, trials: int) -> dict[str, Any]:
    gpu = choose_gpu(world)
    gloo, nccl = make_group("gloo", world), make_group("nccl", world)
    timed: dict[str, dict[str, list[float]]] = {}
    for size in track(SIZES_BYTES):
        ways = make_ways(size, gpu, gloo, nccl)
        for trial in track(range(-1, trials)):  # the first one warms up
            for name, way in ways.items():
                dist.barrier(group=gloo)
                took = time_once(way, gpu)
                if trial >= 0:
                    timed.setdefault(name, {}).setdefault(str(size), []).append(took)
    name = torch.cuda.get_device_name(gpu) if gpu is not None else ""
    return {"timed": timed, "gpu": name, "gpus": torch.cuda.device_count()}


def judge(results: Results) -> Verdict:
    times = {
        way: {int(size): median_of_slowest(result["timed"][way][size] for result in results) for size in by_size}
        for way, by_size in results[0]["timed"].items()
    }
    largest = SIZES_BYTES[-1]
    cpu, copy = times["gloo, CPU tensor"][largest], times["copy CPU to CPU"][largest]
    op = f"an all_reduce of {in_bytes(largest)} on {plural(len(results), 'rank')}"
    claims = [usually("time grows with size", times["gloo, CPU tensor"][SIZES_BYTES[0]] < cpu)]
    if not results[0]["gpu"]:
        sentence = (
            f"this machine has no GPU, so this is the CPU's part alone: {op} takes gloo {in_time(cpu)}, without a copy"
            f" to or from a GPU; one copy of it within the CPU's memory takes {in_time(copy)}. Run it on a machine with"
            f" a GPU for the rest"
        )
    else:
        copies, gpu = times["copy GPU to CPU"][largest] + times["copy CPU to GPU"][largest], times["gloo, GPU tensor"]
        sentence = (
            f"{op} takes gloo {in_time(gpu[largest])} for a tensor on a {results[0]['gpu']}, and {in_time(cpu)} for a"
            f" tensor on the CPU: copying to the CPU and back alone takes {in_time(copies)}"
        )
        claims += [usually("a tensor on the GPU takes gloo longer than one on the CPU", gpu[largest] > cpu)]
        if "nccl, GPU tensor" in times:
            nccl = times["nccl, GPU tensor"][largest]
            sentence += f"; nccl takes {in_time(nccl)}, gloo {gpu[largest] / nccl:.1f} times as long"
            claims += [usually("nccl is faster than gloo on GPUs", nccl < gpu[largest])]
        else:
            sentence += f"; nccl needs a GPU for each rank, and there are {results[0]['gpus']} for {len(results)}"
    return Verdict(
        sentence,
        {
            "gpu": results[0]["gpu"],
            "times_s": {way: {str(size): s for size, s in by_size.items()} for way, by_size in times.items()},
        },
        tuple(claims),
        (
            table(
                "Median time of the slowest rank",
                ("what", *map(in_bytes, SIZES_BYTES)),
                ((way, *(in_time(by_size[size]) for size in SIZES_BYTES)) for way, by_size in times.items()),
            ),
        ),
    )


def draw(results: Results, figure: Figure) -> None:
    axes = figure.add_subplot()
    ways = results[0]["timed"]
    width = 0.8 / len(ways)
    for number, (way, by_size) in enumerate(ways.items()):
        heights = [median(s for r in results for s in r["timed"][way][size]) * 1e3 for size in by_size]
        places = [place - 0.4 + width * (number + 0.5) for place in range(len(heights))]
        axes.bar(places, heights, width * 0.92, color=colour_of(number), label=way)
        for x, height in zip(places, heights, strict=True):
            axes.text(x, height * 1.08, in_time(height / 1e3), ha="center", size=8)
    plain_log(axes)
    axes.set_xticks(range(len(SIZES_BYTES)), [in_bytes(size) for size in SIZES_BYTES])
    axes.set_ylabel("milliseconds")
    axes.margins(y=0.15)
    where = results[0]["gpu"] or "no GPU: the CPU's part"
    axes.set_title(f"Time by size, {len(results)} ranks, {where}")
    axes.legend(loc="upper left", fontsize=9)


CODE_ON_PAGE = (choose_gpu, make_group, make_ways)
NEXT = (
    "`rollcall lab backends -n 2` on a machine with two GPUs: the copies, gloo and nccl",
    "`rollcall lab bandwidth --backend nccl`: the same question over many sizes",
)

if __name__ == "__main__":
    main(__file__)
