"""python -m rollcall.lab.experiments.collectives

What does each collective do? Every rank brings a piece, or one piece for each rank; we write down what all ranks have
before and after. Then the same with one megabyte, while the kernel counts the bytes that each rank sends.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from rollcall import World
from rollcall.lab.bytes_sent import sent_bytes
from rollcall.lab.experiment import Results, Table, Verdict, always, in_bytes, usually
from rollcall.lab.plots import BLACK, GREY, Axes, Figure, colour_of, label_ranks
from rollcall.lab.progress import track
from rollcall.lab.runner.command import main

QUESTION = "what does each collective do?"
TRIALS = 3
MEGABYTE = 1 << 20
Pieces = list[torch.Tensor]

# Each takes the pieces that this rank brings, and returns those that it has afterwards. The root is rank 0.


def broadcast(mine: Pieces, world: World) -> Pieces:
    dist.broadcast(mine[0], src=0)
    return mine


def reduce(mine: Pieces, world: World) -> Pieces:
    dist.reduce(mine[0], dst=0)
    return mine if world.is_first else []  # what is in the others' tensors now, nobody promises


def all_reduce(mine: Pieces, world: World) -> Pieces:
    dist.all_reduce(mine[0])
    return mine


def gather(mine: Pieces, world: World) -> Pieces:
    room = [torch.empty_like(mine[0]) for _ in range(world.size)] if world.is_first else None
    dist.gather(mine[0], room, dst=0)
    return room or []


def all_gather(mine: Pieces, world: World) -> Pieces:
    room = [torch.empty_like(mine[0]) for _ in range(world.size)]
    dist.all_gather(room, mine[0])
    return room


def scatter(mine: Pieces, world: World) -> Pieces:
    room = torch.empty_like(mine[0])
    dist.scatter(room, mine if world.is_first else None, src=0)
    return [room]


def reduce_scatter(mine: Pieces, world: World) -> Pieces:
    room = torch.empty_like(mine[0])
    dist.reduce_scatter(room, mine)
    return [room]


def all_to_all(mine: Pieces, world: World) -> Pieces:
    room = [torch.empty_like(piece) for piece in mine]
    dist.all_to_all(room, mine)
    return room


def barrier(mine: Pieces, world: World) -> Pieces:
    world.barrier()
    return mine


# Does a rank bring one piece, or one for each rank?
ONE = {f.__name__: f for f in (broadcast, reduce, all_reduce, gather, all_gather, barrier)}
MANY = {f.__name__: f for f in (scatter, reduce_scatter, all_to_all)}
COLLECTIVES: dict[str, Callable[[Pieces, World], Pieces]] = {**ONE, **MANY}
REDUCE_OPS = ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "AVG", "PREMUL_SUM")


def start_values(name: str, rank: int, size: int) -> list[int]:
    """Rank 2 brings 3; or 30, 31, 32 … where it brings a piece for each rank."""
    return [rank + 1] if name in ONE else [10 * (rank + 1) + place for place in range(size)]


def before_and_after(name: str, world: World) -> dict[str, list[int]]:
    """One collective on pieces of one number."""
    values = start_values(name, world.rank, world.size)
    mine = [torch.tensor([value], device=world.device) for value in values]
    after = COLLECTIVES[name](mine, world)
    return {"before": values, "after": [int(piece.item()) for piece in after]}


def count_bytes(name: str, world: World) -> int:
    """What this rank sends when each rank brings a megabyte, in one piece or in one for each rank."""
    pieces = 1 if name in ONE else world.size
    mine = [torch.ones(MEGABYTE // 4 // pieces, device=world.device) for _ in range(pieces)]
    world.barrier()
    time.sleep(0.005)  # the barrier's last words
    before = sent_bytes()
    COLLECTIVES[name](mine, world)
    time.sleep(0.005)
    sent = sent_bytes() - before
    world.barrier()  # nobody begins the next one while others still count
    return sent


def try_reduce_op(name: str, world: World) -> Any:
    """all_reduce of rank + 1 with each reduce op; or the reason why this backend has not got it."""
    dtype = torch.float32 if name in ("AVG", "PREMUL_SUM") else torch.int64
    tensor = torch.tensor([world.rank + 1], device=world.device, dtype=dtype)
    try:
        op = dist._make_nccl_premul_sum(2.0) if name == "PREMUL_SUM" else getattr(dist.ReduceOp, name)
        dist.all_reduce(tensor, op)
    except (RuntimeError, ValueError) as error:
        return str(error).splitlines()[0]
    return tensor.item()


def measure(world: World, trials: int) -> dict[str, Any]:
    return {
        "seen": {name: before_and_after(name, world) for name in COLLECTIVES},
        "bytes": {name: [count_bytes(name, world) for _ in track(range(trials))] for name in track(COLLECTIVES)},
        "reduce_ops": {name: try_reduce_op(name, world) for name in REDUCE_OPS},
    }


def expected(name: str, size: int) -> list[list[int]]:
    """What every rank should have afterwards, worked out without torch."""
    before = [start_values(name, rank, size) for rank in range(size)]
    firsts = [pieces[0] for pieces in before]
    only_first = [[] for _ in range(size - 1)]  # type: list[list[int]]
    match name:
        case "broadcast":
            return [[firsts[0]]] * size
        case "reduce":
            return [[sum(firsts)], *only_first]
        case "all_reduce":
            return [[sum(firsts)]] * size
        case "gather":
            return [firsts, *only_first]
        case "all_gather":
            return [firsts] * size
        case "scatter":
            return [[piece] for piece in before[0]]
        case "reduce_scatter":
            return [[sum(column)] for column in zip(*before, strict=True)]
        case "all_to_all":
            return [list(column) for column in zip(*before, strict=True)]
    return before


def expected_of_op(name: str, size: int) -> float:
    values, result = range(2, size + 1), 1.0
    folds: dict[str, Callable[[Any, Any], Any]] = {
        "SUM": lambda a, b: a + b,
        "AVG": lambda a, b: a + b,
        "PREMUL_SUM": lambda a, b: a + b,
        "PRODUCT": lambda a, b: a * b,
        "MIN": min,
        "MAX": max,
        "BAND": lambda a, b: int(a) & b,
        "BOR": lambda a, b: int(a) | b,
        "BXOR": lambda a, b: int(a) ^ b,
    }
    for value in values:
        result = folds[name](result, value)
    return result / size if name == "AVG" else 2 * result if name == "PREMUL_SUM" else result


def judge(results: Results) -> Verdict:
    size = len(results)
    wrong = [
        name for name in COLLECTIVES if [result["seen"][name]["after"] for result in results] != expected(name, size)
    ]
    ops = results[0]["reduce_ops"]
    refused = [name for name, value in ops.items() if isinstance(value, str)]
    bad_ops = [
        name
        for name in REDUCE_OPS
        if name not in refused and any(result["reduce_ops"][name] != expected_of_op(name, size) for result in results)
    ]
    sent = {name: [min(result["bytes"][name]) for result in results] for name in COLLECTIVES}
    most = max(sent["all_reduce"]) / MEGABYTE
    ring = 2 * (size - 1) / size
    is_counted = most > 0
    right = len(COLLECTIVES) - len(wrong)
    return Verdict(
        f"{right} of {len(COLLECTIVES)} collectives did what their names say, and {len(ops) - len(refused)} of"
        f" {len(ops)}"
        f" reduce ops ({', '.join(refused) or 'none'} not on this backend). For an all_reduce of 1 MB each of"
        f" the {size}"
        f" ranks sent {most:.2f} MB: 2(n−1)/n would be {ring:.2f}; for a broadcast, rank 0"
        f" sent {in_bytes(sent['broadcast'][0])}",
        {"sent_bytes": sent, "refused": refused, "wrong": wrong, "wrong_ops": bad_ops, "ring_share": ring},
        (
            always("every collective leaves what it should on every rank", not wrong),
            always("every reduce op that this backend has computes what it should", not bad_ops),
            usually("all_reduce: each rank sends about 2(n−1)/n of the tensor, no more than a ring needs",
                is_counted and ring * 0.98 <= most <= ring * 1.1),
            usually("a barrier sends next to nothing", max(sent["barrier"]) < 10_000),
        ),
        (
            Table(
                "Bytes that each rank sent, when each brought 1 MB",
                ("collective", *(f"rank {rank}" for rank in range(size)), "all"),
                tuple((name, *map(in_bytes, each), in_bytes(sum(each))) for name, each in sent.items()),
            ),
            Table(
                f"all_reduce of {', '.join(str(rank + 1) for rank in range(size))} with each reduce op",
                ("reduce op", "result"),
                tuple((name, f"{value:g}" if not isinstance(value, str) else f"refused: {value[:80]}")
                      for name, value in ops.items()),
            ),
        ),
    )  # fmt: skip


def draw(results: Results, figure: Figure) -> None:
    figure.set_size_inches(10, 1.0 + 1.0 * 3 + 0.36 * len(results) * 3)
    names = (*MANY, *(name for name in ONE))
    for axes, name in zip(figure.subplots(3, 3).flat, names, strict=True):
        _draw_one(axes, name, [result["seen"][name] for result in results], [min(r["bytes"][name]) for r in results])
    figure.suptitle(
        "Before → after, by rank. A colour is the rank it came from, dark is a sum; right: bytes sent, of 1 MB each",
        size=10,
    )


def _draw_one(axes: Axes, name: str, seen: list[dict[str, list[int]]], sent: list[int]) -> None:
    from matplotlib.patches import Rectangle

    size = len(seen)
    starts = {"before": 0.0, "after": size + 1.0}
    for rank, row in enumerate(seen):
        for when, start in starts.items():
            for place, value in enumerate(row[when]):
                owner = value - 1 if name in ONE else value // 10 - 1
                colour = BLACK if when == "after" and "reduce" in name else colour_of(owner)
                axes.add_patch(Rectangle((start + place, rank - 0.4), 0.92, 0.8, fc=colour, ec="none"))
                axes.text(
                    start + place + 0.46,
                    rank,
                    str(value),
                    ha="center",
                    va="center",
                    size=8 if value < 100 else 6.5,
                    color="white",
                    weight="bold",
                )
        axes.text(2 * size + 1.25, rank, in_bytes(sent[rank]), va="center", size=8, color=GREY)
    middle = (size - 1) / 2
    axes.annotate("", (size + 0.85, middle), (size + 0.05, middle), arrowprops={"arrowstyle": "-|>", "color": GREY})
    label_ranks(axes, size)
    axes.set_xlim(-0.1, 2 * size + 4)
    axes.set_xticks([])
    axes.spines[:].set_visible(False)
    axes.set_title(name)


CODE_ON_PAGE = (before_and_after, count_bytes, all_gather, reduce_scatter, all_to_all)
NEXT = (
    "`rollcall lab collectives -n 8`: how the bytes of each rank grow with the ranks, or do not",
    "`rollcall lab ring`: an all_reduce that you can read",
    "`rollcall lab mismatch`: when the ranks do not agree on what they call",
)

if __name__ == "__main__":
    main(__file__)
