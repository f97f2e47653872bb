"""python -m rollcall.lab.experiments.deadlock

How does it look when everyone waits? Nothing crashes, nothing is printed, the processors are idle: each rank sits
in a call that only another rank can end, which sits in one as well.

Three ways to get there, each beside a twin that does the same without the circle; and what `rollcall explain` says,
from the recording alone.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from rollcall import World
from rollcall.lab.experiment import Case, Results, Table, Verdict, always, usually
from rollcall.lab.plots import GREEN, GREY, RED, Axes, Figure, colour_of
from rollcall.lab.runner.command import main

QUESTION = "how does it look when everyone waits?"
TRIALS = 1
HANG_S = 2.0
ELEMENTS = 1 << 20  # 4 MB: more than any buffer on the way holds


def recv_recv(world: World, mine: torch.Tensor, theirs: torch.Tensor) -> None:
    """Ranks 0 and 1 both receive first: nobody sends."""
    if world.rank < 2:
        dist.recv(theirs, src=1 - world.rank)
        dist.send(mine, dst=1 - world.rank)


def recv_recv_mended(world: World, mine: torch.Tensor, theirs: torch.Tensor) -> None:
    """One of the two sends first."""
    if world.rank == 0:
        dist.send(mine, dst=1)
        dist.recv(theirs, src=1)
    elif world.rank == 1:
        dist.recv(theirs, src=0)
        dist.send(mine, dst=0)


def ring_of_receives(world: World, mine: torch.Tensor, theirs: torch.Tensor) -> None:
    """Everyone waits for the one on the left before it sends to the right."""
    dist.recv(theirs, src=(world.rank - 1) % world.size)
    dist.send(mine, dst=(world.rank + 1) % world.size)


def ring_of_receives_mended(world: World, mine: torch.Tensor, theirs: torch.Tensor) -> None:
    """Sends that do not wait: isend."""
    request = dist.isend(mine, dst=(world.rank + 1) % world.size)
    dist.recv(theirs, src=(world.rank - 1) % world.size)
    request.wait()


def send_send(world: World, mine: torch.Tensor, theirs: torch.Tensor) -> None:
    """Ranks 0 and 1 both send first, more than fits on the way: neither gets to its receive."""
    if world.rank < 2:
        dist.send(mine, dst=1 - world.rank)
        dist.recv(theirs, src=1 - world.rank)


def send_send_mended(world: World, mine: torch.Tensor, theirs: torch.Tensor) -> None:
    """Both at once, and torch sorts them: batch_isend_irecv."""
    if world.rank < 2:
        other = 1 - world.rank
        both = [dist.P2POp(dist.isend, mine, other), dist.P2POp(dist.irecv, theirs, other)]
        for request in dist.batch_isend_irecv(both):
            request.wait()


WAYS: dict[str, Callable[[World, torch.Tensor, torch.Tensor], None]] = {
    "recv recv": recv_recv,
    "ring of receives": ring_of_receives,
    "send send": send_send,
    "recv recv, mended": recv_recv_mended,
    "ring of receives, mended": ring_of_receives_mended,
    "send send, mended": send_send_mended,
}
CASES = tuple(
    Case(name, (way.__doc__ or "").strip())
    if "mended" in name
    else Case(name, (way.__doc__ or "").strip(), limit_s=HANG_S, may_fail=True)
    for name, way in WAYS.items()
)
REPORTED_CASE = "ring of receives"
BUGS = tuple(name for name in WAYS if "mended" not in name)


def measure(world: World, case: str, trials: int) -> float:
    """Each rank has its number, many times; what has it received in the end?"""
    mine = torch.full((ELEMENTS,), float(world.rank), device=world.device)
    theirs = torch.full((ELEMENTS,), -1.0, device=world.device)
    WAYS[case](world, mine, theirs)
    return theirs[-1].item()


def judge(results: Results) -> Verdict:
    ranks = len(results["ring of receives"]["values"])
    told = {
        case: results[case]["verdict"] or {"kind": "nothing", "ranks": [], "sites": [], "message": ""} for case in BUGS
    }
    hung = [case for case in BUGS if results[case]["ended"] == "hung"]
    guilty = {"recv recv": [0, 1], "ring of receives": list(range(ranks)), "send send": [0, 1]}
    named = [case for case in BUGS if (told[case]["kind"], told[case]["ranks"]) == ("p2p-deadlock", guilty[case])]
    left = [rank - 1 if rank else ranks - 1 for rank in range(ranks)]
    swapped = [1.0, 0.0, *[-1.0] * (ranks - 2)]
    wanted = {"recv recv": swapped, "ring of receives": [float(rank) for rank in left], "send send": swapped}
    mended = [case for case in BUGS if results[f"{case}, mended"]["values"] == wanted[case]]
    return Verdict(
        f"like nothing at all: {len(hung)} of {len(BUGS)} hung until they were ended after {HANG_S:g} s, without"
        f" a word."
        f" From the recording, explain called {len(named)} of them p2p-deadlock and named the ranks and lines of the"
        f" circle; {len(mended)} of {len(BUGS)} twins that break the circle came to their end, with the right values",
        {
            "ended": {case: ending["ended"] for case, ending in results.items()},
            "explain": {case: {"kind": told[case]["kind"], "ranks": told[case]["ranks"]} for case in BUGS},
            "named": named,
        },
        (
            always("whoever receives first in a circle hangs", set(hung) >= {"recv recv", "ring of receives"}),
            usually("so do two that send first", "send send" in hung),
            usually("explain names every circle: kind and ranks", named == list(BUGS)),
            always("the mended twins end, with the right values", len(mended) == len(BUGS)),
        ),
        (
            Table(
                "What explain says",
                ("what", "how it ended", "verdict", "ranks", "lines"),
                tuple(
                    (
                        case,
                        results[case]["ended"],
                        told[case]["kind"],
                        ", ".join(map(str, told[case]["ranks"])),
                        ", ".join(site.rpartition("/")[2] for site in told[case]["sites"]),
                    )
                    for case in BUGS
                ),
            ),
        ),
    )


def draw(results: Results, figure: Figure) -> None:
    figure.set_size_inches(9, 3.9)
    figure.suptitle("Who waits for whom, from the recording", size=10)
    for axes, case in zip(figure.subplots(1, 3), BUGS, strict=True):
        _draw_circle(axes, case, results[case])


def _draw_circle(axes: Axes, case: str, ending: dict[str, Any]) -> None:
    """Who waits for whom, as explain has it."""
    import math

    ranks = len(ending["values"])
    verdict = ending["verdict"] or {}
    cycle = verdict.get("evidence", {}).get("cycle", [])
    at = {rank: (math.sin(2 * math.pi * rank / ranks), math.cos(2 * math.pi * rank / ranks)) for rank in range(ranks)}
    for rank, waited_for in zip(cycle, cycle[1:] + cycle[:1], strict=True):
        axes.annotate(
            "", at[waited_for], at[rank],
            arrowprops={"arrowstyle": "-|>", "color": RED, "lw": 2, "shrinkA": 17, "shrinkB": 17,
                        "connectionstyle": "arc3,rad=0.25", "mutation_scale": 16},
        )  # fmt: skip
    for rank, (x, y) in at.items():
        is_in = rank in cycle
        axes.scatter(
            x, y, s=700, color=colour_of(rank) if is_in else "white", edgecolor=GREY, lw=0 if is_in else 1.2, zorder=3
        )
        axes.text(
            x,
            y,
            str(rank),
            ha="center",
            va="center",
            color="white" if is_in else GREY,
            weight="bold",
            size=12,
            zorder=4,
        )
    word = f"{ending['ended']}  ·  {verdict.get('kind', 'nothing to explain')}"
    axes.text(0, -1.65, word, ha="center", color=RED if ending["ended"] == "hung" else GREEN)
    axes.set_xlim(-1.6, 1.6)
    axes.set_ylim(-1.8, 1.4)
    axes.set_aspect("equal")
    axes.axis("off")
    axes.set_title(case, loc="center")


CODE_ON_PAGE = (recv_recv, ring_of_receives, send_send, ring_of_receives_mended)
NEXT = (
    "`rollcall run -n 4 --hang-after 2 --on-hang stop -m rollcall.lab.experiments.deadlock --case 'ring of receives'`:"
    " live",
    "make `ELEMENTS` 1: does send/send still hang? On this backend a send waits for its receive, however small",
    "`rollcall lab mismatch`: the other ways not to come to an end",
)

if __name__ == "__main__":
    main(__file__)
