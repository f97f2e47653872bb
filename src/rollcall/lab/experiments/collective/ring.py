"""rollcall lab ring

How does all-reduce work? A ring all-reduce by hand, from isend and recv alone.

The tensor is cut into as many chunks as there are ranks. Each rank only exchanges data with its two neighbours: first
chunks go round and are added up (reduce-scatter), until each rank has one complete chunk; then the complete chunks go
round (all-gather). Every rank sends 2(n−1)/n of the tensor, however many ranks there are.
"""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from rollcall import World
from rollcall.lab.experiment import Experiment, Results, Verdict, always, median_of_slowest, table, usually
from rollcall.lab.measuring import Work, count_sent_bytes, time_once
from rollcall.lab.plots import BLUE, GREY, ORANGE, Figure, plain_log
from rollcall.lab.progress import track
from rollcall.units import in_binary_bytes, in_seconds

WAYS = ("naive", "ring", "library")
MEGABYTE = 1 << 20
SIZES_BYTES = (4 << 10, 64 << 10, 1 << 20, 8 << 20)


def ring_all_reduce(tensor: torch.Tensor, rank: int, size: int) -> None:
    """Add up a flat tensor over ranks 0 to size-1, in place."""
    chunks = list(tensor.tensor_split(size))
    right, left = (rank + 1) % size, (rank - 1) % size
    buffer = torch.empty_like(chunks[0])  # the first chunk is the largest

    for step in range(size - 1):  # reduce-scatter
        going, coming = chunks[(rank - step) % size], chunks[(rank - step - 1) % size]
        request = dist.isend(going, right)
        received = buffer[: len(coming)]
        dist.recv(received, left)
        coming += received
        request.wait()

    for step in range(size - 1):  # all-gather: chunk rank+1 is complete here
        going, coming = chunks[(rank + 1 - step) % size], chunks[(rank - step) % size]
        request = dist.isend(going, right)
        dist.recv(coming, left)
        request.wait()


def naive_all_reduce(tensor: torch.Tensor, rank: int, size: int) -> None:
    """Every rank sends everything to rank 0, which adds it up and sends it back: all data passes rank 0's link."""
    if rank == 0:
        received = torch.empty_like(tensor)
        for other in range(1, size):
            dist.recv(received, other)
            tensor += received
        for other in range(1, size):
            dist.send(tensor, other)
    else:
        dist.send(tensor, 0)
        dist.recv(tensor, 0)


def ring_with_wrong_buffer(tensor: torch.Tensor, rank: int, size: int) -> None:
    """A well-known bug: this ring passes whole tensors on, but adds its own one again, not the received one."""
    own, going = tensor.clone(), tensor.clone()
    for _ in range(size - 1):
        coming = torch.empty_like(going)
        request = dist.isend(going, (rank + 1) % size)
        dist.recv(coming, (rank - 1) % size)
        request.wait()
        tensor += own  # the bug: it should add `coming`
        going = coming


def compare(world: World, elements: int) -> dict[str, Any]:
    """The ring against the library: on integers, on fractions that add up exactly, and on random floats."""
    generator = torch.Generator().manual_seed(world.rank)
    whole = torch.randint(-1000, 1000, (elements,), generator=generator)
    exact = whole / 1024  # adding these needs no rounding
    random = torch.randn(elements, generator=generator)
    found: dict[str, Any] = {}
    for name, values in (("whole", whole), ("exact", exact), ("random", random)):
        values = values.to(world.device)
        ours, theirs, magnitude = values.clone(), values.clone(), values.abs().double()
        ring_all_reduce(ours, world.rank, world.size)
        dist.all_reduce(theirs)
        dist.all_reduce(magnitude)
        apart = (ours.double() - theirs.double()).abs()
        # Each of n-1 additions may round: two orders of adding differ by no more than that.
        bound = 2 * (world.size - 1) * magnitude * torch.finfo(torch.float32).eps / 2
        found[name] = {
            "bit_equal": bool(torch.equal(ours, theirs)),
            "differ": int((apart > 0).sum()),
            "largest": float(apart.max()),
            "within_bound": bool((apart <= bound).all()),
        }
    faulty, theirs = whole.to(world.device), whole.to(world.device, copy=True)
    ring_with_wrong_buffer(faulty, world.rank, world.size)
    dist.all_reduce(theirs)
    found["wrong buffer"] = {"bit_equal": bool(torch.equal(faulty, theirs))}
    return found


def time_all(world: World, trials: int) -> list[dict[str, Any]]:
    """Seconds of naive, ring and library, for every size, on 2, 3 … ranks; the other ranks wait."""
    timed = []
    for ranks in track(range(2, world.size + 1)):
        group = dist.new_group(list(range(ranks)))
        for size in track(SIZES_BYTES if world.rank < ranks else ()):
            tensor = torch.ones(size // 4, device=world.device)
            ways: dict[str, Work] = {
                "naive": partial(naive_all_reduce, tensor, world.rank, ranks),
                "ring": partial(ring_all_reduce, tensor, world.rank, ranks),
                "library": partial(dist.all_reduce, tensor, group=group),
            }
            for _ in track(range(trials + 1)):  # the first one warms up
                for name, way in ways.items():
                    dist.barrier(group=group)
                    took_s = time_once(way, world.device)
                    timed.append({"ranks": ranks, "bytes": size, "way": name, "s": took_s})
        world.barrier()
    return timed


def count_bytes(world: World) -> dict[str, int]:
    """The bytes that this rank sends for one all-reduce of a megabyte, as the kernel counts them."""
    tensor = torch.ones(MEGABYTE // 4, device=world.device)
    return {
        "naive": count_sent_bytes(lambda: naive_all_reduce(tensor, world.rank, world.size), world),
        "ring": count_sent_bytes(lambda: ring_all_reduce(tensor, world.rank, world.size), world),
    }


def measure(world: World, trials: int) -> dict[str, Any]:
    return {"equal": compare(world, 10_007), "sent": count_bytes(world), "timed": time_all(world, trials)}


def medians(results: Results) -> dict[tuple[int, int, str], float]:
    """By ranks, size and way: the median over trials of the slowest rank's time."""
    times: dict[tuple[int, int, str], dict[int, list[float]]] = {}
    for rank, result in enumerate(results):
        for row in result["timed"]:
            by_rank = times.setdefault((row["ranks"], row["bytes"], row["way"]), {})
            by_rank.setdefault(rank, []).append(row["s"])
    return {key: median_of_slowest(seconds[1:] for seconds in by_rank.values()) for key, by_rank in times.items()}


def judge(results: Results) -> Verdict:
    times, most, largest = medians(results), len(results), SIZES_BYTES[-1]
    naive_s, ring_s, library_s = (times[most, largest, way] for way in WAYS)
    equal = {kind: [result["equal"][kind] for result in results] for kind in results[0]["equal"]}
    is_equal = {kind: all(each["bit_equal"] for each in by_rank) for kind, by_rank in equal.items()}
    words = {kind: "bit-identical" if same else "NOT EQUAL" for kind, same in is_equal.items()}
    apart, differ = (max(each[name] for each in equal["random"]) for name in ("largest", "differ"))
    busiest = {way: max(result["sent"][way] for result in results) for way in ("naive", "ring")}
    rows = [
        (ranks, in_binary_bytes(size), *(in_seconds(times[ranks, size, way]) for way in WAYS))
        for ranks in range(2, most + 1)
        for size in SIZES_BYTES
    ]
    return Verdict(
        f"compared with dist.all_reduce, the ring is {words['whole']} on integers and {words['exact']} on fractions"
        f" that need no rounding; of 10007 random floats {differ} differ in their last bits, by at most {apart:.1g},"
        f" since they are added in another order. For 1 MiB, the busiest rank sent {in_binary_bytes(busiest['naive'])}"
        f" with naive, and {in_binary_bytes(busiest['ring'])} with the ring. {in_binary_bytes(largest)} on {most} ranks"
        f" took naive {in_seconds(naive_s)}, ring {in_seconds(ring_s)}, library {in_seconds(library_s)}",
        {
            "times_s": [{"ranks": r, "bytes": b, "way": w, "s": s} for (r, b, w), s in sorted(times.items())],
            "busiest_sent_bytes": busiest,
            "random_differ": differ,
            "random_largest": apart,
            "naive_over_ring": naive_s / ring_s,
            "ring_over_library": ring_s / library_s,
        },
        (
            always("bit-identical on integers", is_equal["whole"]),
            always("bit-identical on fractions that need no rounding", is_equal["exact"]),
            always(
                "on random floats, no further apart than rounding explains",
                all(each["within_bound"] for each in equal["random"]),
            ),
            always(
                "a ring that adds the wrong buffer is noticed", not any(e["bit_equal"] for e in equal["wrong buffer"])
            ),
            usually(
                "in a ring of three or more, no rank sends as much as the busiest one with naive",
                most < 3 or busiest["ring"] < busiest["naive"],
            ),
            usually("for the largest tensor on all ranks the ring is faster than naive", ring_s < naive_s),
        ),
        (table("Median time of the slowest rank", ("ranks", "size", *WAYS), rows),),
    )


def draw(results: Results, figure: Figure) -> None:
    times, most, largest = medians(results), len(results), SIZES_BYTES[-1]
    left, right = figure.subplots(1, 2)
    ranks = range(2, most + 1)
    for way, colour, marker in zip(WAYS, (GREY, BLUE, ORANGE), "so^", strict=True):
        style: Any = {"color": colour, "marker": marker, "label": way}
        left.plot(SIZES_BYTES, [times[most, size, way] * 1e3 for size in SIZES_BYTES], **style)
        right.plot(ranks, [times[n, largest, way] * 1e3 for n in ranks], **style)
    left.set_xscale("log", base=2)
    plain_log(left)
    left.set_xticks(SIZES_BYTES, map(in_binary_bytes, SIZES_BYTES))
    left.minorticks_off()
    left.set(title=f"Time by size, {most} ranks", ylabel="milliseconds")
    right.set(title=f"Time by ranks, {in_binary_bytes(largest)}", xlabel="ranks", xticks=ranks)
    right.set_ylim(0)
    for axes in (left, right):
        axes.grid(axis="y")
        axes.legend()


EXPERIMENT = Experiment(measure, judge, draw, trials=7, code_on_page=(ring_all_reduce, naive_all_reduce, compare))
