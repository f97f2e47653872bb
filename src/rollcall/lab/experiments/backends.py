"""python -m rollcall.lab.experiments.backends

Is gloo slower than nccl, and why? Gloo works in the CPU's memory: a tensor on a GPU has to be copied down, reduced
over the network, and copied up again. NCCL moves it from GPU to GPU.

On a machine with GPUs we measure all of it: the copies, gloo on tensors of the GPU and of the CPU, and nccl, which
needs a GPU for each rank. On a machine without, there is the CPU's half: gloo's all_reduce, and what a copy costs
there.
"""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from rollcall import World
from rollcall.lab.experiment import Claim, Results, Table, Verdict, in_bytes, in_time, usually
from rollcall.lab.plots import Figure, colour_of, plain_log
from rollcall.lab.progress import track
from rollcall.lab.runner.command import main

QUESTION = "is gloo slower than nccl, and why?"
TRIALS = 5
LEAST_RANKS = 1
SIZES_BYTES = (64 << 10, 1 << 20, 16 << 20)


def choose_gpu(world: World) -> torch.device | None:
    """This rank's GPU; ranks share one where there are too few. None on a machine without."""
    if not torch.cuda.is_available():
        return None
    return torch.device("cuda", world.info.local_rank % torch.cuda.device_count())


def make_group(backend: str, world: World) -> Any:
    """A group with this backend, or None where it cannot be: nccl wants a GPU for each rank."""
    if not dist.is_backend_available(backend):
        return None
    if backend == "nccl" and torch.cuda.device_count() < world.info.local_world_size:
        return None
    return dist.new_group(backend=backend)


def seconds(work: Callable[[], Any], gpu: torch.device | None) -> float:
    """How long it takes; a GPU works on after the call has returned, so we wait for it."""
    if gpu is not None:
        torch.cuda.synchronize(gpu)
    began = time.monotonic()
    work()
    if gpu is not None:
        torch.cuda.synchronize(gpu)
    return time.monotonic() - began


def make_ways(size_bytes: int, gpu: torch.device | None, gloo: Any, nccl: Any) -> dict[str, Callable[[], Any]]:
    """Everything that this machine can do with a tensor of this size."""
    on_cpu = torch.ones(size_bytes // 4)
    other = torch.empty_like(on_cpu)
    ways: dict[str, Callable[[], Any]] = {
        "copy CPU to CPU": lambda: other.copy_(on_cpu),
        "gloo, CPU tensor": lambda: dist.all_reduce(on_cpu, group=gloo),
    }
    if gpu is None:
        return ways
    on_gpu = torch.ones(size_bytes // 4, device=gpu)
    pinned = torch.ones(size_bytes // 4, pin_memory=True)  # what gloo copies through: the GPU reaches it by itself
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
                took = seconds(way, gpu)
                if trial >= 0:
                    timed.setdefault(name, {}).setdefault(str(size), []).append(took)
    name = torch.cuda.get_device_name(gpu) if gpu is not None else ""
    return {"timed": timed, "gpu": name, "gpus": torch.cuda.device_count()}


def judge(results: Results) -> Verdict:
    times = {
        way: {
            int(size): median([max(trial) for trial in zip(*(r["timed"][way][size] for r in results), strict=True)])
            for size in by_size
        }
        for way, by_size in results[0]["timed"].items()
    }
    largest = SIZES_BYTES[-1]
    cpu, copy = times["gloo, CPU tensor"][largest], times["copy CPU to CPU"][largest]
    what = f"an all_reduce of {in_bytes(largest)} on {len(results)} rank{'s' * (len(results) > 1)}"
    claims: tuple[Claim, ...] = (usually("time grows with size", times["gloo, CPU tensor"][SIZES_BYTES[0]] < cpu),)
    if not results[0]["gpu"]:
        sentence = (
            f"this machine has no GPU, so here is the CPU's half alone: {what} takes gloo {in_time(cpu)}, of which"
            f" nothing is copying to and from a GPU; one copy of it within the CPU's memory takes {in_time(copy)}."
            f" Run it where there is a GPU for the other half"
        )
    else:
        down, up = times["copy GPU to CPU"][largest], times["copy CPU to GPU"][largest]
        gpu = times["gloo, GPU tensor"][largest]
        sentence = (
            f"{what} on a {results[0]['gpu']} takes gloo {in_time(gpu)}, where a tensor of the CPU takes it"
            f" {in_time(cpu)}: copying down and up alone takes {in_time(down + up)}"
        )
        claims += (usually("a tensor on the GPU costs gloo more than one on the CPU", gpu > cpu),)
        if "nccl, GPU tensor" in times:
            nccl = times["nccl, GPU tensor"][largest]
            sentence += f"; nccl takes {in_time(nccl)}, {gpu / nccl:.1f} times less"
            claims += (usually("nccl is faster than gloo on GPUs", nccl < gpu),)
        else:
            sentence += f"; nccl needs a GPU for each rank, and here are {results[0]['gpus']} for {len(results)}"
    rows = tuple((way, *(in_time(by_size[size]) for size in SIZES_BYTES)) for way, by_size in times.items())
    return Verdict(
        sentence,
        {
            "gpu": results[0]["gpu"],
            "times_s": {way: {str(size): s for size, s in by_size.items()} for way, by_size in times.items()},
        },
        claims,
        (Table("Median time of the slowest rank", ("what", *map(in_bytes, SIZES_BYTES)), rows),),
    )


def draw(results: Results, figure: Figure) -> None:
    axes = figure.add_subplot()
    ways = results[0]["timed"]
    width = 0.8 / len(ways)
    for number, (way, by_size) in enumerate(ways.items()):
        heights = [median([s for r in results for s in r["timed"][way][size]]) * 1e3 for size in by_size]
        places = [place - 0.4 + width * (number + 0.5) for place in range(len(heights))]
        axes.bar(places, heights, width * 0.92, color=colour_of(number), label=way)
        for x, height in zip(places, heights, strict=True):
            axes.text(x, height * 1.08, in_time(height / 1e3), ha="center", size=8)
    plain_log(axes)
    axes.set_xticks(range(len(SIZES_BYTES)), [in_bytes(size) for size in SIZES_BYTES])
    axes.tick_params(axis="x", length=0)
    axes.set_ylabel("milliseconds")
    axes.margins(y=0.15)
    where = results[0]["gpu"] or "a machine without a GPU: the CPU's half"
    axes.set_title(f"What a tensor costs on its way, {len(results)} ranks, {where}")
    axes.legend(loc="upper left", fontsize=9)


CODE_ON_PAGE = (choose_gpu, make_group, make_ways)
NEXT = (
    "`rollcall lab backends -n 2` on a machine with two GPUs: all of it, nccl too",
    "`rollcall lab bandwidth --backend nccl`: the same question over many sizes",
)

if __name__ == "__main__":
    main(__file__)
