"""python -m rollcall.lab.experiments.groups

What is a process group? A scope for collectives: a broadcast in a group reaches its members and nobody else.

Four worlds: two groups side by side; a rank that calls a collective of a group it is not in; ranks that make their
groups in another order than the others; and a group that only its members make.
"""

import warnings
from typing import Any

import torch
import torch.distributed as dist

from rollcall import World
from rollcall.lab.experiment import Case, Results, Table, Verdict, always, usually
from rollcall.lab.plots import BLUE, ORANGE, PALE, RED, Figure, colour_of
from rollcall.lab.runner.command import main

QUESTION = "what is a process group?"
TRIALS = 1
LEAST_RANKS = 4
CASES = (
    Case("two groups", "even and odd ranks broadcast at the same time"),
    Case("a stranger calls", "ranks 2 and up call a broadcast of the group of ranks 0 and 1"),
    Case("another order", "the last rank makes its two groups in the other order", limit_s=3, may_fail=True),
    Case(
        "members only",
        "only ranks 0 and 1 call new_group for their group; then all make another",
        limit_s=3,
        may_fail=True,
    ),
)
REPORTED_CASE = "two groups"


def two_groups(world: World) -> dict[str, Any]:
    """Every rank makes both groups, also the one it is not in, and broadcasts in its own."""
    evens = list(range(0, world.size, 2))
    odds = list(range(1, world.size, 2))
    of_evens, of_odds = dist.new_group(evens), dist.new_group(odds)
    group, members = (of_evens, evens) if world.rank in evens else (of_odds, odds)
    tensor = torch.tensor([100 + world.rank], device=world.device)
    before = tensor.item()
    dist.broadcast(tensor, src=members[0], group=group)  # the source is named by its rank in the world
    return {"before": before, "after": tensor.item(), "rank_in_group": dist.get_rank(group), "group": members}


def stranger(world: World) -> dict[str, Any]:
    """All ranks make the group of 0 and 1; then all call its broadcast. Torch warns the strangers, and goes on."""
    group = dist.new_group([0, 1])
    tensor = torch.tensor([100 + world.rank], device=world.device)
    before = tensor.item()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        dist.broadcast(tensor, src=0, group=group)
    return {"before": before, "after": tensor.item(), "warned": [str(warning.message) for warning in told]}


def another_order(world: World) -> dict[str, Any]:
    """Groups are matched by the order in which they are made, not by their members."""
    pairs = [[0, 1], [2, 3]]
    if world.rank == world.size - 1:
        pairs.reverse()
    made = [(members, dist.new_group(members)) for members in pairs]
    tensor = torch.tensor([100 + world.rank], device=world.device)
    for members, group in made:
        if world.rank in members:
            dist.all_reduce(tensor, group=group)
    return {"after": tensor.item()}


def members_only(world: World) -> dict[str, Any]:
    """new_group is for all ranks of the world, members or not: who leaves one out counts differently ever after."""
    if world.rank in (0, 1):
        dist.new_group([0, 1])
    everyone = dist.new_group(list(range(world.size)))  # the second group of ranks 0 and 1, the first of the others
    tensor = torch.tensor([100 + world.rank], device=world.device)
    dist.all_reduce(tensor, group=everyone)
    return {"after": tensor.item()}


def measure(world: World, case: str, trials: int) -> dict[str, Any]:
    ways = {
        "two groups": two_groups,
        "a stranger calls": stranger,
        "another order": another_order,
        "members only": members_only,
    }
    return ways[case](world)


def judge(results: Results) -> Verdict:
    scoped = results["two groups"]["values"]
    inside = [seen["after"] == 100 + seen["group"][0] for seen in scoped]
    strange = results["a stranger calls"]
    outsiders = (strange["values"] or [])[2:]
    untouched = strange["ended"] == "well" and all(seen["before"] == seen["after"] for seen in outsiders)
    swapped, partial = results["another order"], results["members only"]
    kinds = {case: (ending["verdict"] or {}).get("kind", "nothing") for case, ending in results.items()}
    return Verdict(
        f"a broadcast reached {sum(inside)} of {len(inside)} members of its own group, with that group's value."
        f" A rank that"
        f" calls a broadcast of a group it is not in {'goes on unchanged' if untouched else 'does NOT go on unchanged'}"
        f" (explain: {kinds['a stranger calls']}). new_group in another order: {_in_words(swapped)} (explain:"
        f" {kinds['another order']}); new_group by its members alone: {_in_words(partial)} (explain:"
        f" {kinds['members only']})",
        {"ended": {case: ending["ended"] for case, ending in results.items()}, "explain": kinds},
        (
            always("a broadcast stays within its group", all(inside) and len(inside) >= LEAST_RANKS),
            always("a stranger's tensor is left alone", untouched),
            usually("the same groups in another order come to no good end", swapped["ended"] != "well"),
            usually("nor does a group that only its members make", partial["ended"] != "well"),
            usually("explain names both", "nothing" not in (kinds["another order"], kinds["members only"])),
        ),
        (
            Table(
                "Two groups side by side: broadcast from the first of each",
                ("rank", "group", "rank in the group", "before", "after"),
                tuple(
                    (str(rank), str(seen["group"]), str(seen["rank_in_group"]), str(seen["before"]), str(seen["after"]))
                    for rank, seen in enumerate(scoped)
                ),
            ),
            Table(
                "What goes wrong",
                ("what", "how it ended", "what explain says"),
                tuple(
                    (
                        case.about,
                        _in_words(results[case.name]),
                        (results[case.name]["verdict"] or {}).get("message", "—"),
                    )
                    for case in CASES[1:]
                ),
            ),
        ),
    )


def _in_words(ending: dict[str, Any]) -> str:
    if ending["ended"] == "failed":
        return "fails"
    return "goes on" if ending["ended"] == "well" else "hangs"


def draw(results: Results, figure: Figure) -> None:
    from matplotlib.patches import FancyBboxPatch

    scoped = results["two groups"]["values"]
    left, right = figure.subplots(1, 2, width_ratios=(1.2, 1))
    for rank, seen in enumerate(scoped):
        side = rank % 2
        colour = (BLUE, ORANGE)[side]
        x, y = (rank // 2) * 1.5, -side * 1.6
        left.add_patch(FancyBboxPatch((x, y), 1.1, 0.8, boxstyle="round,pad=0.05", fc="white", ec=colour, lw=2.5))
        left.text(x + 0.55, y + 0.53, f"rank {rank}", ha="center", weight="bold", color=colour)
        left.text(x + 0.55, y + 0.15, f"{seen['before']} → {seen['after']}", ha="center", size=9)
        if rank >= 2:
            left.annotate(
                "", (x - 0.05, y + 0.4), (x - 0.35, y + 0.4), arrowprops={"arrowstyle": "-|>", "color": colour}
            )
    columns = (len(scoped) + 1) // 2
    for side, name in enumerate(("even ranks", "odd ranks")):
        left.add_patch(
            FancyBboxPatch(
                (-0.2, -side * 1.6 - 0.2), columns * 1.5, 1.4, boxstyle="round,pad=0.04", fc=PALE, ec="none", zorder=0
            )
        )
        left.text(-0.15, -side * 1.6 + 0.96, f"group of {name}", size=9)
    left.set_xlim(-0.6, columns * 1.5 + 0.2)
    left.set_ylim(-2.1, 1.4)
    left.axis("off")
    left.set_title("A broadcast in each of two groups")
    colours = {"well": colour_of(2), "failed": RED, "hung": RED}
    for row, case in enumerate(CASES):
        ending = results[case.name]
        right.text(0, -row, case.name, weight="bold", va="bottom")
        said = (ending["verdict"] or {}).get("kind", "nothing to explain")
        right.text(0, -row - 0.08, f"{_in_words(ending)}  ·  {said}", va="top", size=9, color=colours[ending["ended"]])
    right.set_ylim(-len(CASES) + 0.3, 0.6)
    right.axis("off")
    right.set_title("How it ended  ·  what explain says")


CODE_ON_PAGE = (two_groups, stranger, another_order, members_only)
NEXT = (
    "`rollcall run -n 4 --hang-after 3 --on-hang stop -m rollcall.lab.experiments.groups --case 'members only'`:"
    " see it hang, and be named",
    "`rollcall lab collectives`: what can be done in a group",
)

if __name__ == "__main__":
    main(__file__)
