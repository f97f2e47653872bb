"""rollcall lab collectives

What does each collective do? Every rank starts with one piece, or with one piece for each rank; we note what all ranks
have before and after. Then the same with one megabyte, while the kernel counts the bytes that each rank sends.
"""

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from rollcall import World
from rollcall.lab.experiment import Experiment, Results, Verdict, always, table, usually
from rollcall.lab.measuring import count_sent_bytes
from rollcall.lab.plots import BLACK, GREY, Axes, Figure, add_arrow, colour_of, label_ranks
from rollcall.lab.progress import track
from rollcall.units import in_binary_bytes

MEGABYTE = 1 << 20
Pieces = list[torch.Tensor]

# Each takes the pieces that this rank starts with, and returns those that it ends with. The root is rank 0.


def broadcast(mine: Pieces, world: World) -> Pieces:
    dist.broadcast(mine[0], src=0)
    return mine


def reduce(mine: Pieces, world: World) -> Pieces:
    dist.reduce(mine[0], dst=0)
    return mine if world.is_first else []  # on the other ranks the content is undefined


def all_reduce(mine: Pieces, world: World) -> Pieces:
    dist.all_reduce(mine[0])
    return mine


def gather(mine: Pieces, world: World) -> Pieces:
    output = [torch.empty_like(mine[0]) for _ in range(world.size)] if world.is_first else None
    dist.gather(mine[0], output, dst=0)
    return output or []


def all_gather(mine: Pieces, world: World) -> Pieces:
    output = [torch.empty_like(mine[0]) for _ in range(world.size)]
    dist.all_gather(output, mine[0])
    return output


def scatter(mine: Pieces, world: World) -> Pieces:
    output = torch.empty_like(mine[0])
    dist.scatter(output, mine if world.is_first else None, src=0)
    return [output]


def reduce_scatter(mine: Pieces, world: World) -> Pieces:
    output = torch.empty_like(mine[0])
    dist.reduce_scatter(output, mine)
    return [output]


def all_to_all(mine: Pieces, world: World) -> Pieces:
    output = [torch.empty_like(piece) for piece in mine]
    dist.all_to_all(output, mine)
    return output


def barrier(mine: Pieces, world: World) -> Pieces:
    world.barrier()
    return mine


# Collectives to which a rank brings one piece, and those to which it brings one for each rank.
ONE = {f.__name__: f for f in (broadcast, reduce, all_reduce, gather, all_gather, barrier)}
MANY = {f.__name__: f for f in (scatter, reduce_scatter, all_to_all)}
COLLECTIVES: dict[str, Callable[[Pieces, World], Pieces]] = {**ONE, **MANY}
REDUCE_OPS = ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "AVG", "PREMUL_SUM")


def start_values(name: str, rank: int, size: int) -> list[int]:
    """Rank 2 starts with 3; or with 30, 31, 32 … if it has a piece for each rank."""
    return [rank + 1] if name in ONE else [10 * (rank + 1) + place for place in range(size)]


def before_and_after(name: str, world: World) -> dict[str, list[int]]:
    """One collective, on pieces of one number each."""
    values = start_values(name, world.rank, world.size)
    mine = [torch.tensor([value], device=world.device) for value in values]
    after = COLLECTIVES[name](mine, world)
    return {"before": values, "after": [int(piece.item()) for piece in after]}


def count_bytes(name: str, world: World) -> int:
    """The bytes that this rank sends if each rank has a megabyte, in one piece or in one for each rank."""
    pieces = 1 if name in ONE else world.size
    mine = [torch.ones(MEGABYTE // 4 // pieces, device=world.device) for _ in range(pieces)]
    return count_sent_bytes(lambda: COLLECTIVES[name](mine, world), world)


def try_reduce_op(name: str, world: World) -> Any:
    """all_reduce of rank + 1 with this reduce op; or torch's message, if the backend does not support it."""
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
    """What every rank must have afterwards, computed without torch."""
    before = [start_values(name, rank, size) for rank in range(size)]
    firsts = [pieces[0] for pieces in before]
    others: list[list[int]] = [[]] * (size - 1)
    columns = list(map(list, zip(*before, strict=True)))
    return {
        "broadcast": [[firsts[0]]] * size,
        "reduce": [[sum(firsts)], *others],
        "all_reduce": [[sum(firsts)]] * size,
        "gather": [firsts, *others],
        "all_gather": [firsts] * size,
        "scatter": [[piece] for piece in before[0]],
        "reduce_scatter": [[sum(column)] for column in columns],
        "all_to_all": columns,
        "barrier": before,
    }[name]


def expected_of_op(name: str, size: int) -> float:
    values = range(1, size + 1)
    return {
        "SUM": sum(values),
        "PRODUCT": math.prod(values),
        "MIN": 1,
        "MAX": size,
        "BAND": functools.reduce(operator.and_, values),
        "BOR": functools.reduce(operator.or_, values),
        "BXOR": functools.reduce(operator.xor, values),
        "AVG": sum(values) / size,
        "PREMUL_SUM": 2 * sum(values),
    }[name]


def judge(results: Results) -> Verdict:
    size, ops = len(results), results[0]["reduce_ops"]
    wrong = [name for name in COLLECTIVES if [r["seen"][name]["after"] for r in results] != expected(name, size)]
    refused = [name for name, value in ops.items() if isinstance(value, str)]
    supported = [name for name in ops if name not in refused]
    wrong_ops = [
        name for name in supported if any(r["reduce_ops"][name] != expected_of_op(name, size) for r in results)
    ]
    sent = {name: [min(result["bytes"][name]) for result in results] for name in COLLECTIVES}
    most, ring = max(sent["all_reduce"]) / MEGABYTE, 2 * (size - 1) / size
    return Verdict(
        f"{len(COLLECTIVES) - len(wrong)} of {len(COLLECTIVES)} collectives did what their names say, and so did"
        f" {len(supported) - len(wrong_ops)} of {len(ops)} reduce ops ({', '.join(refused) or 'none'} not supported by"
        f" this backend). For an all_reduce of 1 MiB each of the {size} ranks sent {most:.2f} MiB, where 2(n−1)/n is"
        f" {ring:.2f}; for a broadcast, rank 0 sent {in_binary_bytes(sent['broadcast'][0])}",
        {"sent_bytes": sent, "refused": refused, "wrong": wrong, "wrong_ops": wrong_ops, "ring_share": ring},
        (
            always("after every collective, every rank has the right values", not wrong),
            always("every supported reduce op has the right result", not wrong_ops),
            usually(
                "all_reduce: each rank sends about 2(n−1)/n of the tensor, no more than a ring needs",
                ring * 0.98 <= most <= ring * 1.1,
            ),
            usually("a barrier sends next to nothing", max(sent["barrier"]) < 10_000),
        ),
        (
            table(
                "Bytes that each rank sent, if each has 1 MiB",
                ("collective", *(f"rank {rank}" for rank in range(size)), "all"),
                ((name, *map(in_binary_bytes, (*by_rank, sum(by_rank)))) for name, by_rank in sent.items()),
            ),
            table(
                f"all_reduce of {', '.join(str(rank + 1) for rank in range(size))} with each reduce op",
                ("reduce op", "result"),
                ((name, f"refused: {value[:80]}" if name in refused else f"{value:g}") for name, value in ops.items()),
            ),
        ),
    )


def draw(results: Results, figure: Figure) -> None:
    figure.set_size_inches(10, 4.0 + 1.08 * len(results))
    for axes, name in zip(figure.subplots(3, 3).flat, (*MANY, *ONE), strict=True):
        _draw_one(axes, name, [result["seen"][name] for result in results], [min(r["bytes"][name]) for r in results])
    figure.suptitle(
        "Before → after, by rank. A colour is the rank it came from, dark is a sum; right: bytes sent, of 1 MiB each",
        size=10,
    )


def _draw_one(axes: Axes, name: str, seen: list[dict[str, list[int]]], sent: list[int]) -> None:
    size = len(seen)
    for rank, row in enumerate(seen):
        for when, left in (("before", 0), ("after", size + 1)):
            for x, value in enumerate(row[when], left):
                owner = value - 1 if name in ONE else value // 10 - 1
                colour = BLACK if when == "after" and "reduce" in name else colour_of(owner)
                font: Any = {"size": 8 if value < 100 else 6.5, "color": "white", "weight": "bold"}
                axes.barh(rank, 0.92, left=x, color=colour)
                axes.text(x + 0.46, rank, f"{value}", ha="center", va="center", **font)
        axes.text(2 * size + 1.25, rank, in_binary_bytes(sent[rank]), va="center", size=8, color=GREY)
    middle = (size - 1) / 2
    add_arrow(axes, (size + 0.05, middle), (size + 0.85, middle), GREY)
    label_ranks(axes, size)
    axes.set(title=name, xlim=(-0.1, 2 * size + 4), xticks=[])
    axes.spines[:].set_visible(False)


EXPERIMENT = Experiment(
    measure,
    judge,
    draw,
    trials=3,
    code_on_page=(before_and_after, count_bytes, count_sent_bytes, all_gather, reduce_scatter, all_to_all),
)
