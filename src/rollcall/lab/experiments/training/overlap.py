"""rollcall lab overlap

Why is DDP faster than averaging by hand? It does not wait for the end of backward: as soon as a few gradients (a
bucket) are computed, it sends them, while backward goes on with the layers before.

Backward imitates a GPU: each layer takes a few milliseconds in which this CPU is idle. If the CPU itself computes,
communication needs the same cores, and there is less to gain.
"""

import contextlib
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rollcall import World
from rollcall.lab.experiment import Experiment, Results, Verdict, always, compared, median_of_slowest, table, usually
from rollcall.lab.measuring import Work
from rollcall.lab.plots import BLUE, GREY, ORANGE, Figure, label_rows
from rollcall.lab.progress import track
from rollcall.units import in_seconds

LAYERS = 8
LAYER_S = 0.004
PARAMETERS = 1 << 18  # of each layer: 1 MB
MICRO_BATCHES = 4
WARM_UP = 2  # DDP rebuilds its buckets after the first step


class IdleLayer(torch.autograd.Function):
    """A layer whose backward takes LAYER_S and leaves the CPU idle, as if a GPU computed it."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(weight)
        return value + weight[0]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        (weight,) = ctx.saved_tensors
        time.sleep(LAYER_S)
        return gradient, torch.ones_like(weight)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ParameterList(nn.Parameter(torch.zeros(PARAMETERS)) for _ in range(LAYERS))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        for weight in self.layers:
            value = IdleLayer.apply(value, weight)
        return value


Events = list[list[Any]]  # name, start, end


def note_gradients(model: nn.Module, events: Events) -> None:
    """Note when each gradient is computed."""
    for place, parameter in enumerate(model.parameters()):

        def note(_: torch.Tensor, place: int = place) -> None:
            now = time.monotonic()
            events.append([f"layer {place}", now - LAYER_S, now])

        parameter.register_post_accumulate_grad_hook(note)


def average_by_hand(model: nn.Module, size: int, events: Events) -> None:
    for parameter in model.parameters():
        began = time.monotonic()
        dist.all_reduce(parameter.grad)
        parameter.grad.div_(size)
        events.append(["all_reduce", began, time.monotonic()])


def make_hook(size: int, events: Events) -> Callable[[Any, Any], Any]:
    """A DDP communication hook that does what DDP does by default, and notes when."""

    def hook(_: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        began, buffer = time.monotonic(), bucket.buffer()
        future: torch.futures.Future[Any] = dist.all_reduce(buffer, async_op=True).get_future()

        def done(_: Any) -> torch.Tensor:
            events.append(["all_reduce", began, time.monotonic()])
            return buffer.div_(size)

        return future.then(done)

    return hook


def make_ways(world: World, events: Events) -> dict[str, Work]:
    """A function for one step in each way, each with its own model."""
    value = torch.zeros(1, requires_grad=True, device=world.device)
    plain = Model().to(world.device)
    note_gradients(plain, events)

    def by_hand() -> None:
        plain(value).sum().backward()
        average_by_hand(plain, world.size, events)

    ways: dict[str, Work] = {"by hand, after backward": by_hand}
    for name, bucket_mb in (("DDP, 1 MB buckets", 1), ("DDP, 2 MB buckets", 2), ("DDP, one bucket", 1000)):
        inner = Model().to(world.device)
        note_gradients(inner, events)
        model = DistributedDataParallel(inner, bucket_cap_mb=bucket_mb)
        model.register_comm_hook(None, make_hook(world.size, events))

        def step(model: DistributedDataParallel = model) -> None:
            model(value).sum().backward()

        ways[name] = step

    def accumulate(model: DistributedDataParallel = model) -> None:
        """Four micro-batches; only the last one is sent."""
        for micro in range(MICRO_BATCHES):
            with model.no_sync() if micro < MICRO_BATCHES - 1 else contextlib.nullcontext():
                model(value).sum().backward()

    ways[f"DDP, no_sync, {MICRO_BATCHES} micro-batches"] = accumulate
    return ways


def measure(world: World, trials: int) -> dict[str, Any]:
    """Every way in turn: how long each step took, and the events of the last one."""
    events: Events = []
    ways = make_ways(world, events)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    timeline: dict[str, Events] = {}
    for _ in track(range(WARM_UP + trials)):
        for name, step in ways.items():
            world.barrier()
            events.clear()
            began = time.monotonic()
            step()
            seconds[name].append(time.monotonic() - began)
            timeline[name] = [[what, start - began, end - began] for what, start, end in events]
    return {"seconds": {name: times[WARM_UP:] for name, times in seconds.items()}, "timeline": timeline}


def hidden_share(timeline: Events) -> float:
    """The share of the communication time that is before the end of backward."""
    end = max((stop for what, _, stop in timeline if what != "all_reduce"), default=0.0)
    spans = [(start, stop) for what, start, stop in timeline if what == "all_reduce"]
    whole = sum(stop - start for start, stop in spans)
    return sum(max(0.0, min(stop, end) - start) for start, stop in spans) / whole if whole else 0.0


def judge(results: Results) -> Verdict:
    ways = list(results[0]["seconds"])
    step = {way: median_of_slowest(result["seconds"][way] for result in results) for way in ways}
    calls = {way: sum(what == "all_reduce" for what, _, _ in results[0]["timeline"][way]) for way in ways}
    hidden = {way: hidden_share(results[0]["timeline"][way]) for way in ways}
    by_hand, small, medium, large, accumulated = ways
    compute_s = LAYERS * LAYER_S
    best = min((small, medium), key=lambda way: step[way])
    return Verdict(
        f"DDP sends buckets of gradients during backward: a step took {in_seconds(step[by_hand])} by hand and"
        f" {in_seconds(step[best])} with {best.removeprefix('DDP, ')} ({compared(step[by_hand], step[best])}), where"
        f" the computation alone takes {in_seconds(compute_s)}; {hidden[best]:.0%} of its communication took place"
        f" during backward, by hand {hidden[by_hand]:.0%}. With one bucket for everything, DDP waits for the last"
        f" gradient ({in_seconds(step[large])}, {hidden[large]:.0%} during backward). With no_sync, {MICRO_BATCHES}"
        f" micro-batches need {calls[accumulated]} all_reduce instead of {MICRO_BATCHES * calls[large]}",
        {
            "compute_s": compute_s,
            "step_s": step,
            "all_reduces": calls,
            "hidden_share": hidden,
            "per_micro_batch_s": step[accumulated] / MICRO_BATCHES,
        },
        (
            always("by hand, no communication takes place during backward", hidden[by_hand] == 0),
            usually("with small buckets, some of it does", hidden[best] > 0),
            usually("DDP with small buckets is faster than by hand", step[best] < step[by_hand]),
            always("smaller buckets, more all_reduces", calls[small] >= calls[medium] > calls[large]),
            always("no_sync sends once for all micro-batches", calls[accumulated] == calls[large]),
        ),
        (
            table(
                f"{LAYERS} layers of 1 MiB, {in_seconds(LAYER_S)} each",
                ("way", "step", "all_reduces", "communication during backward"),
                ((way, in_seconds(step[way]), calls[way], f"{hidden[way]:.0%}") for way in ways),
            ),
        ),
    )


def draw(results: Results, figure: Figure) -> None:
    ways = list(results[0]["timeline"])[:4]
    figure.set_size_inches(9, 5)
    axes = figure.add_subplot()
    for row, way in enumerate(ways):
        timeline = results[0]["timeline"][way]
        for what, shift, colour in (("layer", -0.2, ORANGE), ("all_reduce", 0.2, BLUE)):
            spans = [(start * 1e3, (stop - start) * 1e3) for name, start, stop in timeline if name.startswith(what)]
            axes.broken_barh(spans, (row + shift - 0.17, 0.34), color=colour, edgecolor="white", lw=0.8)
        end_ms = max(stop for _, _, stop in timeline) * 1e3
        axes.plot([end_ms] * 2, [row - 0.4, row + 0.4], color=GREY, lw=1.5)
        axes.text(end_ms, row, f"  {end_ms:.0f} ms", va="center", weight="bold")
    label_rows(axes, ways)
    axes.margins(x=0.12)
    axes.set_xlim(0)
    axes.set_xlabel("milliseconds (rank 0, one step)")
    axes.set_title("Backward and communication, one after the other or side by side")
    names = ("backward, layer by layer", "all_reduce, bucket by bucket")
    axes.legend(axes.collections[:2], names, loc="lower center", bbox_to_anchor=(0.5, -0.28), ncols=2)


EXPERIMENT = Experiment(measure, judge, draw, trials=5, code_on_page=(IdleLayer, make_hook, make_ways))
