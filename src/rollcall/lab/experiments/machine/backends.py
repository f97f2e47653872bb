"""rollcall lab backends

Is gloo slower than nccl, and why? Gloo works in the CPU's memory: a tensor on a GPU has to be copied to the CPU,
reduced over the network, and copied back. NCCL moves it from GPU to GPU.

On a machine with GPUs we measure all of it: the copies, gloo on tensors of the GPU and of the CPU, and nccl, which
needs a GPU for each rank. On a machine without GPUs we measure the CPU's part: gloo's all_reduce, and a copy.
"""

from typing import Any

import torch
import torch.distributed as dist

from rollcall import World
from rollcall.lab.experiment import Experiment, Results, Verdict, median_of_slowest, table, usually
from rollcall.lab.measuring import Work, time_once
from rollcall.lab.plots import Figure, colour_of, plain_log
from rollcall.lab.progress import track
from rollcall.units import in_binary_bytes, in_seconds, plural

SIZES_BYTES = (64 << 10, 1 << 20, 16 << 20)
CPU = torch.device("cpu")


def choose_device(world: World) -> torch.device:
    """This rank's GPU; ranks share one if there are too few. The CPU on a machine without GPUs."""
    if not torch.cuda.is_available():
        return CPU
    return torch.device("cuda", world.info.local_rank % torch.cuda.device_count())


def make_group(backend: str, world: World) -> Any:
    """A group with this backend, or None if it is not possible: nccl needs a GPU for each rank."""
    if not dist.is_backend_available(backend):
        return None
    if backend == "nccl" and torch.cuda.device_count() < world.info.local_world_size:
        return None
    return dist.new_group(backend=backend)


def make_ways(size_bytes: int, device: torch.device, gloo: Any, nccl: Any) -> dict[str, Work]:
    """Everything that this machine can do with a tensor of this size, by name."""
    on_cpu = torch.ones(size_bytes // 4)
    other = torch.empty_like(on_cpu)
    ways: dict[str, Work] = {
        "copy CPU to CPU": lambda: other.copy_(on_cpu),
        "gloo, CPU tensor": lambda: dist.all_reduce(on_cpu, group=gloo),
    }
    if device == CPU:
        return ways
    on_gpu = torch.ones(size_bytes // 4, device=device)
    pinned = torch.ones(size_bytes // 4, pin_memory=True)  # as gloo uses it: the GPU can access it directly
    ways["copy GPU to CPU"] = lambda: pinned.copy_(on_gpu)
    ways["copy CPU to GPU"] = lambda: on_gpu.copy_(pinned)
    ways["gloo, GPU tensor"] = lambda: dist.all_reduce(on_gpu, group=gloo)
    if nccl is not None:
        ways["nccl, GPU tensor"] = lambda: dist.all_reduce(on_gpu, group=nccl)
    return ways


def measure(world: World, trials: int) -> dict[str, Any]:
    device = choose_device(world)
    gloo, nccl = make_group("gloo", world), make_group("nccl", world)
    timed: dict[str, dict[str, list[float]]] = {}
    for size in track(SIZES_BYTES):
        ways = make_ways(size, device, gloo, nccl)
        for trial in track(range(-1, trials)):  # the first one warms up
            for name, way in ways.items():
                dist.barrier(group=gloo)
                took_s = time_once(way, device)
                if trial >= 0:
                    timed.setdefault(name, {}).setdefault(str(size), []).append(took_s)
    name = torch.cuda.get_device_name(device) if device != CPU else ""
    return {"timed": timed, "gpu": name, "gpus": torch.cuda.device_count()}


def medians(results: Results) -> dict[str, dict[str, float]]:
    """By way and size: the median over trials of the slowest rank's time."""
    return {
        way: {size: median_of_slowest(result["timed"][way][size] for result in results) for size in by_size}
        for way, by_size in results[0]["timed"].items()
    }


def judge(results: Results) -> Verdict:
    times, gpu_name = medians(results), results[0]["gpu"]
    largest = {way: by_size[str(SIZES_BYTES[-1])] for way, by_size in times.items()}
    cpu_s = largest["gloo, CPU tensor"]
    op = f"an all_reduce of {in_binary_bytes(SIZES_BYTES[-1])} on {plural(len(results), 'rank')}"
    claims = [usually("time grows with size", times["gloo, CPU tensor"][str(SIZES_BYTES[0])] < cpu_s)]
    if not gpu_name:
        sentence = (
            f"this machine has no GPU, so this is the CPU's part alone: {op} takes gloo {in_seconds(cpu_s)}, without a"
            f" copy to or from a GPU; one copy of it within the CPU's memory takes"
            f" {in_seconds(largest['copy CPU to CPU'])}. Run it on a machine with a GPU for the rest"
        )
    else:
        copies_s, gpu_s = largest["copy GPU to CPU"] + largest["copy CPU to GPU"], largest["gloo, GPU tensor"]
        sentence = (
            f"{op} takes gloo {in_seconds(gpu_s)} for a tensor on a {gpu_name}, and {in_seconds(cpu_s)} for a tensor on"
            f" the CPU: copying to the CPU and back alone takes {in_seconds(copies_s)}"
        )
        claims += [usually("a tensor on the GPU takes gloo longer than one on the CPU", gpu_s > cpu_s)]
        if "nccl, GPU tensor" in largest:
            nccl_s = largest["nccl, GPU tensor"]
            sentence += f"; nccl takes {in_seconds(nccl_s)}, gloo {gpu_s / nccl_s:.1f} times as long"
            claims += [usually("nccl is faster than gloo on GPUs", nccl_s < gpu_s)]
        else:
            sentence += f"; nccl needs a GPU for each rank, and there are {results[0]['gpus']} for {len(results)}"
    rows = [(way, *map(in_seconds, by_size.values())) for way, by_size in times.items()]
    by_size = table("Median time of the slowest rank", ("what", *map(in_binary_bytes, SIZES_BYTES)), rows)
    return Verdict(sentence, {"gpu": gpu_name, "times_s": times}, tuple(claims), (by_size,))


def draw(results: Results, figure: Figure) -> None:
    axes = figure.add_subplot()
    times = medians(results)
    width = 0.8 / len(times)
    for number, (way, by_size) in enumerate(times.items()):
        for place, seconds in enumerate(by_size.values()):
            x, label = place - 0.4 + width * (number + 0.5), way if place == 0 else None
            axes.bar(x, seconds * 1e3, width * 0.92, color=colour_of(number), label=label)
            axes.text(x, seconds * 1e3 * 1.08, in_seconds(seconds), ha="center", size=8)
    plain_log(axes)
    axes.margins(y=0.15)
    axes.set_xticks(range(len(SIZES_BYTES)), map(in_binary_bytes, SIZES_BYTES))
    where = results[0]["gpu"] or "no GPU: the CPU's part"
    axes.set(title=f"Time by size, {len(results)} ranks, {where}", ylabel="milliseconds")
    axes.legend(loc="upper left", fontsize=9)


EXPERIMENT = Experiment(
    measure, judge, draw, trials=5, least_ranks=1, code_on_page=(choose_device, make_group, make_ways)
)
