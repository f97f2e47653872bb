"""rollcall lab groups

What is a process group? A scope for collectives: a broadcast in a group reaches its members and nobody else.

Four cases: two groups side by side; a rank that calls a collective of a group of which it is not a member; ranks that
create their groups in another order than the others; and a group that only its members create.
"""

import warnings
from typing import Any

import torch
import torch.distributed as dist

from rollcall import World
from rollcall.lab.experiment import Case, Experiment, Results, Verdict, always, found_kind, table, usually
from rollcall.lab.plots import BLUE, GREEN, ORANGE, RED, Axes, Figure, add_arrow, add_box

LEAST_RANKS = 4
CASES = (
    Case("two groups", "even and odd ranks broadcast at the same time"),
    Case("non-member call", "ranks 2 and up call a broadcast of the group of ranks 0 and 1"),
    Case("another order", "the last rank creates its two groups in the other order", limit_s=3, may_fail=True),
    Case("members only", "only ranks 0 and 1 create their group; then all create another", limit_s=3, may_fail=True),
)
IN_WORDS = {"well": "goes on", "failed": "fails", "hung": "hangs"}


def two_groups(world: World) -> dict[str, Any]:
    """Every rank creates both groups, also the one it is not in, and broadcasts in its own."""
    evens = list(range(0, world.size, 2))
    odds = list(range(1, world.size, 2))
    of_evens, of_odds = dist.new_group(evens), dist.new_group(odds)
    group, members = (of_evens, evens) if world.rank in evens else (of_odds, odds)
    tensor = torch.tensor([100 + world.rank], device=world.device)
    before = tensor.item()
    dist.broadcast(tensor, src=members[0], group=group)  # the source is named by its rank in the world
    return {"before": before, "after": tensor.item(), "rank_in_group": dist.get_rank(group), "group": members}


def non_member_call(world: World) -> dict[str, Any]:
    """All ranks create the group of 0 and 1; then all call its broadcast. Torch warns the other ranks, and goes on."""
    group = dist.new_group([0, 1])
    tensor = torch.tensor([100 + world.rank], device=world.device)
    before = tensor.item()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dist.broadcast(tensor, src=0, group=group)
    return {"before": before, "after": tensor.item(), "warned": [str(warning.message) for warning in caught]}


def another_order(world: World) -> dict[str, Any]:
    """Groups are matched by the order in which they are created, not by their members."""
    pairs = [[0, 1], [2, 3]]
    if world.rank == world.size - 1:
        pairs.reverse()
    groups = [(members, dist.new_group(members)) for members in pairs]
    tensor = torch.tensor([100 + world.rank], device=world.device)
    for members, group in groups:
        if world.rank in members:
            dist.all_reduce(tensor, group=group)
    return {"after": tensor.item()}


def members_only(world: World) -> dict[str, Any]:
    """All ranks must call new_group, members or not: a rank that leaves one out has other group numbers ever after."""
    if world.rank in (0, 1):
        dist.new_group([0, 1])
    everyone = dist.new_group(list(range(world.size)))  # the second group of ranks 0 and 1, the first of the others
    tensor = torch.tensor([100 + world.rank], device=world.device)
    dist.all_reduce(tensor, group=everyone)
    return {"after": tensor.item()}


def measure(world: World, case: str, trials: int) -> dict[str, Any]:
    functions = {
        "two groups": two_groups,
        "non-member call": non_member_call,
        "another order": another_order,
        "members only": members_only,
    }
    return functions[case](world)


def judge(results: Results) -> Verdict:
    members = results["two groups"]["values"]
    right = [seen["after"] == 100 + seen["group"][0] for seen in members]
    unchanged = all(seen["before"] == seen["after"] for seen in results["non-member call"]["values"][2:])
    ended = {case: ending["ended"] for case, ending in results.items()}
    kinds = {case: found_kind(ending) for case, ending in results.items()}
    problems = []
    for case in CASES[1:]:
        verdict = results[case.name]["verdict"]
        problems.append((case.about, IN_WORDS[ended[case.name]], verdict["message"] if verdict else "—"))
    return Verdict(
        f"a broadcast in a group reached {sum(right)} of {len(right)} ranks with the value of their own group. A rank"
        f" that calls a broadcast of a group it is not in"
        f" {'goes on, and its tensor stays as it was' if unchanged else 'does NOT go on with its tensor unchanged'}"
        f" (explain: {kinds['non-member call']}). If one rank calls new_group in another order, the run"
        f" {IN_WORDS[ended['another order']]} (explain: {kinds['another order']}); if only the members call it, the run"
        f" {IN_WORDS[ended['members only']]} (explain: {kinds['members only']})",
        {"ended": ended, "explain": kinds},
        (
            always("a broadcast stays within its group", all(right) and len(right) >= LEAST_RANKS),
            always("the tensor of a non-member stays as it was", unchanged),
            usually("the same groups in another order fail or hang", ended["another order"] != "well"),
            usually("so does a group that only its members create", ended["members only"] != "well"),
            usually("explain names both", "nothing" not in (kinds["another order"], kinds["members only"])),
        ),
        (
            table(
                "Two groups side by side: broadcast from the first of each",
                ("rank", "group", "rank in the group", "before", "after"),
                ((rank, s["group"], s["rank_in_group"], s["before"], s["after"]) for rank, s in enumerate(members)),
            ),
            table("What goes wrong", ("what", "the run", "what explain says"), problems),
        ),
    )


def draw(results: Results, figure: Figure) -> None:
    left, right = figure.subplots(1, 2, width_ratios=(1.2, 1))
    _draw_groups(results["two groups"]["values"], left)
    for row, (case, ending) in enumerate(results.items()):
        colour = GREEN if ending["ended"] == "well" else RED
        words = f"{IN_WORDS[ending['ended']]}  ·  {found_kind(ending)}"
        right.text(0, -row, case, weight="bold", va="bottom")
        right.text(0, -row - 0.08, words, va="top", size=9, color=colour)
    right.set(title="How it ended  ·  what explain says", ylim=(-len(CASES) + 0.3, 0.6))
    right.axis("off")


def _draw_groups(members: list[dict[str, Any]], axes: Axes) -> None:
    columns = (len(members) + 1) // 2
    for row, name in enumerate(("even ranks", "odd ranks")):
        add_box(axes, -0.2, -row * 1.6 - 0.2, columns * 1.5, 1.4, zorder=0)
        axes.text(-0.15, -row * 1.6 + 0.96, f"group of {name}", size=9)
    for rank, seen in enumerate(members):
        x, y, colour = rank // 2 * 1.5, -(rank % 2) * 1.6, (BLUE, ORANGE)[rank % 2]
        add_box(axes, x, y, 1.1, 0.8, edge=colour)
        axes.text(x + 0.55, y + 0.53, f"rank {rank}", ha="center", weight="bold", color=colour)
        axes.text(x + 0.55, y + 0.15, f"{seen['before']} → {seen['after']}", ha="center", size=9)
        if rank >= 2:
            add_arrow(axes, (x - 0.35, y + 0.4), (x - 0.05, y + 0.4), colour)
    axes.set(title="A broadcast in each of two groups", xlim=(-0.6, columns * 1.5 + 0.2), ylim=(-2.1, 1.4))
    axes.axis("off")


EXPERIMENT = Experiment(
    measure,
    judge,
    draw,
    trials=1,
    least_ranks=LEAST_RANKS,
    cases=CASES,
    reported_case="two groups",
    code_on_page=(two_groups, non_member_call, another_order, members_only),
)
