"""rollcall lab deadlock

How does it look when everyone waits? Nothing crashes, nothing is printed, the processors are idle: each rank is blocked
in a call that ends only when another rank makes a call, and that rank is blocked too.

Three such programs, each with a fixed version that does the same without the circle; and what `rollcall explain` says,
from the recording alone.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from rollcall import World
from rollcall.lab.experiment import Case, Experiment, Results, Verdict, always, found_kind, table, usually
from rollcall.lab.plots import GREEN, GREY, RED, Axes, Figure, add_arrow, colour_of

HANG_S = 2.0
ELEMENTS = 1 << 20  # 4 MB: more than the buffers of the network hold


def recv_recv(world: World, mine: torch.Tensor, theirs: torch.Tensor) -> None:
    """Ranks 0 and 1 both receive first: nobody sends."""
    if world.rank < 2:
        dist.recv(theirs, src=1 - world.rank)
        dist.send(mine, dst=1 - world.rank)


def recv_recv_fixed(world: World, mine: torch.Tensor, theirs: torch.Tensor) -> None:
    """One of the two sends first."""
    if world.rank == 0:
        dist.send(mine, dst=1)
        dist.recv(theirs, src=1)
    elif world.rank == 1:
        dist.recv(theirs, src=0)
        dist.send(mine, dst=0)


def ring_of_receives(world: World, mine: torch.Tensor, theirs: torch.Tensor) -> None:
    """Every rank waits for its left neighbour before it sends to the right one."""
    dist.recv(theirs, src=(world.rank - 1) % world.size)
    dist.send(mine, dst=(world.rank + 1) % world.size)


def ring_of_receives_fixed(world: World, mine: torch.Tensor, theirs: torch.Tensor) -> None:
    """A send that does not block: isend."""
    request = dist.isend(mine, dst=(world.rank + 1) % world.size)
    dist.recv(theirs, src=(world.rank - 1) % world.size)
    request.wait()


def send_send(world: World, mine: torch.Tensor, theirs: torch.Tensor) -> None:
    """Ranks 0 and 1 both send first, more than the network buffers: neither reaches its receive."""
    if world.rank < 2:
        dist.send(mine, dst=1 - world.rank)
        dist.recv(theirs, src=1 - world.rank)


def send_send_fixed(world: World, mine: torch.Tensor, theirs: torch.Tensor) -> None:
    """Send and receive at the same time: batch_isend_irecv."""
    if world.rank < 2:
        other = 1 - world.rank
        both = [dist.P2POp(dist.isend, mine, other), dist.P2POp(dist.irecv, theirs, other)]
        for request in dist.batch_isend_irecv(both):
            request.wait()


WAYS: dict[str, Callable[[World, torch.Tensor, torch.Tensor], None]] = {
    "recv recv": recv_recv,
    "ring of receives": ring_of_receives,
    "send send": send_send,
    "recv recv, fixed": recv_recv_fixed,
    "ring of receives, fixed": ring_of_receives_fixed,
    "send send, fixed": send_send_fixed,
}
CASES = tuple(
    Case(name, (way.__doc__ or "").strip(), limit_s=60 if "fixed" in name else HANG_S, may_fail="fixed" not in name)
    for name, way in WAYS.items()
)
BUGS = tuple(name for name in WAYS if "fixed" not in name)


def measure(world: World, case: str, trials: int) -> float:
    """Each rank sends its number, many times; returns what it has received."""
    mine = torch.full((ELEMENTS,), float(world.rank), device=world.device)
    theirs = torch.full((ELEMENTS,), -1.0, device=world.device)
    WAYS[case](world, mine, theirs)
    return theirs[-1].item()


def judge(results: Results) -> Verdict:
    ranks = len(results["ring of receives"]["values"])
    pair, all_of_them = [0, 1], list(range(ranks))
    in_circle = {"recv recv": pair, "ring of receives": all_of_them, "send send": pair}
    swapped = [1.0, 0.0, *[-1.0] * (ranks - 2)]
    from_left = [float((rank - 1) % ranks) for rank in all_of_them]
    expected = {"recv recv": swapped, "ring of receives": from_left, "send send": swapped}
    nothing: dict[str, Any] = {"ranks": [], "sites": []}
    explained = {bug: {"kind": found_kind(results[bug]), **(results[bug]["verdict"] or nothing)} for bug in BUGS}
    hung = [bug for bug in BUGS if results[bug]["ended"] == "hung"]
    named = [bug for bug, e in explained.items() if (e["kind"], e["ranks"]) == ("p2p-deadlock", in_circle[bug])]
    fixed = [bug for bug in BUGS if results[f"{bug}, fixed"]["values"] == expected[bug]]
    rows = []
    for bug, each in explained.items():
        lines = (site.rpartition("/")[2] for site in each["sites"])
        rows.append((bug, results[bug]["ended"], each["kind"], ", ".join(map(str, each["ranks"])), ", ".join(lines)))
    return Verdict(
        f"nothing is to be seen: {len(hung)} of {len(BUGS)} programs hung without printing anything, until they were"
        f" ended after {HANG_S:g} s. From the recording, explain called {len(named)} of them p2p-deadlock and named the"
        f" ranks and lines of the circle; {len(fixed)} of {len(BUGS)} fixed versions ended, with the right values",
        {
            "ended": {case: ending["ended"] for case, ending in results.items()},
            "explain": {bug: {"kind": e["kind"], "ranks": e["ranks"]} for bug, e in explained.items()},
            "named": named,
        },
        (
            always("ranks that all receive first hang", set(hung) >= {"recv recv", "ring of receives"}),
            usually("so do two that both send first", "send send" in hung),
            usually("explain names every circle: kind and ranks", named == list(BUGS)),
            always("the fixed versions end, with the right values", len(fixed) == len(BUGS)),
        ),
        (table("What explain says", ("program", "how it ended", "verdict", "ranks", "lines"), rows),),
    )


def draw(results: Results, figure: Figure) -> None:
    figure.set_size_inches(9, 3.9)
    figure.suptitle("Which rank waits for which, from the recording", size=10)
    for axes, bug in zip(figure.subplots(1, 3), BUGS, strict=True):
        _draw_circle(axes, bug, results[bug])


def _draw_circle(axes: Axes, title: str, ending: dict[str, Any]) -> None:
    """Arrows from each rank to the one that it waits for, as explain found them."""
    ranks = len(ending["values"])
    cycle = (ending["verdict"] or {}).get("evidence", {}).get("cycle", [])
    at = {rank: (math.sin(2 * math.pi * rank / ranks), math.cos(2 * math.pi * rank / ranks)) for rank in range(ranks)}
    for rank, waited_for in zip(cycle, cycle[1:] + cycle[:1], strict=True):
        style = {"lw": 2, "shrinkA": 17, "shrinkB": 17, "connectionstyle": "arc3,rad=0.25", "mutation_scale": 16}
        add_arrow(axes, at[rank], at[waited_for], RED, **style)
    for rank, (x, y) in at.items():
        fill, text, line = (colour_of(rank), "white", 0.0) if rank in cycle else ("white", GREY, 1.2)
        axes.scatter(x, y, s=700, color=fill, edgecolor=GREY, lw=line, zorder=3)
        axes.text(x, y, f"{rank}", ha="center", va="center", color=text, weight="bold", size=12, zorder=4)
    words = f"{ending['ended']}  ·  {found_kind(ending)}"
    axes.text(0, -1.65, words, ha="center", color=RED if ending["ended"] == "hung" else GREEN)
    axes.set(xlim=(-1.6, 1.6), ylim=(-1.8, 1.4), aspect="equal")
    axes.axis("off")
    axes.set_title(title, loc="center")


EXPERIMENT = Experiment(
    measure,
    judge,
    draw,
    trials=1,
    cases=CASES,
    reported_case="ring of receives",
    code_on_page=(recv_recv, ring_of_receives, send_send, ring_of_receives_fixed),
)
