"""rollcall lab mismatch

What if the ranks disagree? One rank calls all_reduce with another shape, another dtype, another reduce op; or makes the
same calls in another order; or names another root. Which of these crash, which hang, and which silently compute wrong
values?
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from rollcall import World
from rollcall.lab.experiment import Case, Experiment, Results, Verdict, always, found_kind, table, usually
from rollcall.lab.plots import BLACK, GREEN, GREY, ORANGE, PALE, PURPLE, RED, Figure, label_rows

HANG_S = 3.0
IN_WORDS = {
    "crash": "ended in a crash",
    "hang": "in a hang",
    "wrong values": "in wrong values without an error",
    "right": "in the right values by chance",
}
Values = list[float]

# It is always the last rank that differs. All start with ones: if all agree, each element of the sum is the world size.


def nothing(world: World, differs: bool) -> Values:
    """All agree."""
    tensor = torch.ones(4, device=world.device)
    dist.all_reduce(tensor)
    return tensor.tolist()


def shape(world: World, differs: bool) -> Values:
    """The last rank has 3 elements, the others 4."""
    tensor = torch.ones(3 if differs else 4, device=world.device)
    dist.all_reduce(tensor)
    return tensor.tolist()


def dtype(world: World, differs: bool) -> Values:
    """The last rank has integers, the others floats; both of 32 bits."""
    tensor = torch.ones(4, device=world.device, dtype=torch.int32 if differs else torch.float32)
    dist.all_reduce(tensor)
    return [float(value) for value in tensor]


def reduce_op(world: World, differs: bool) -> Values:
    """The last rank takes the maximum, the others add."""
    tensor = torch.ones(4, device=world.device)
    dist.all_reduce(tensor, dist.ReduceOp.MAX if differs else dist.ReduceOp.SUM)
    return tensor.tolist()


def order(world: World, differs: bool) -> Values:
    """The last rank calls broadcast and then all_reduce, the others the other way round."""
    tensor = torch.ones(4, device=world.device)
    setting = torch.full((4,), 7.0, device=world.device) if world.is_first else torch.zeros(4, device=world.device)
    if differs:
        dist.broadcast(setting, src=0)
        dist.all_reduce(tensor)
    else:
        dist.all_reduce(tensor)
        dist.broadcast(setting, src=0)
    return tensor.tolist()


def root(world: World, differs: bool) -> Values:
    """The last rank names rank 1 as the source of a broadcast, the others rank 0; then all call all_reduce."""
    setting = torch.full((4,), float(world.rank), device=world.device)
    dist.broadcast(setting, src=1 if differs else 0)
    tensor = torch.ones(4, device=world.device) + setting
    dist.all_reduce(tensor)
    return tensor.tolist()


def absence(world: World, differs: bool) -> Values:
    """The last rank leaves an all_reduce out, and goes on to the barrier."""
    tensor = torch.ones(4, device=world.device)
    if not differs:
        dist.all_reduce(tensor)
    world.barrier()
    return tensor.tolist()


FUNCTIONS: tuple[Callable[[World, bool], Values], ...] = (nothing, shape, dtype, reduce_op, order, root, absence)
WAYS = {function.__name__.replace("_", " "): function for function in FUNCTIONS}
CASES = tuple(
    Case(name, (way.__doc__ or "").strip(), limit_s=60 if way is nothing else HANG_S, may_fail=way is not nothing)
    for name, way in WAYS.items()
)


def measure(world: World, case: str, trials: int) -> Values:
    return WAYS[case](world, world.rank == world.size - 1)


def effect(ending: dict[str, Any]) -> str:
    """What it led to: right values, wrong values without an error, a crash or a hang."""
    if ending["ended"] != "well":
        return {"failed": "crash", "hung": "hang"}[ending["ended"]]
    values, ranks = ending["values"], len(ending["values"])
    same_length = len({len(each) for each in values}) == 1
    return "right" if same_length and all(set(each) == {float(ranks)} for each in values) else "wrong values"


def judge(results: Results) -> Verdict:
    effects = {case: effect(ending) for case, ending in results.items()}
    kinds = {case: found_kind(ending) for case, ending in results.items()}
    bugs = [case for case in WAYS if case != "nothing"]
    found = [bug for bug in bugs if kinds[bug] != "nothing"]
    last = len(results["nothing"]["values"]) - 1
    named = [bug for bug in found if last in results[bug]["verdict"]["ranks"]]
    listed = []
    for kind, words in IN_WORDS.items():
        if some := [bug for bug in bugs if effects[bug] == kind]:
            listed.append(f"{len(some)} {words} ({', '.join(some)})")
    rows = [(case, effects[case], *(_shown(results[case], rank) for rank in (0, last)), kinds[case]) for case in WAYS]
    return Verdict(
        f"of {len(bugs)} disagreements, {', '.join(listed)}. explain found a problem in {len(found)} of them, and named"
        f" the rank that differs in {len(named)}; if all agree, it found {kinds['nothing']}",
        {"fates": effects, "explain": kinds, "odd_rank": last},
        (
            always("if all agree, the sum is right", effects["nothing"] == "right"),
            always("if all agree, explain finds nothing", kinds["nothing"] == "nothing"),
            usually("another reduce op raises no error: the values are wrong", effects["reduce op"] == "wrong values"),
            usually("explain finds a problem in each", found == bugs),
        ),
        (
            table(
                "What each disagreement does",
                ("disagreement", "what it does", "rank 0 has", f"rank {last} has", "explain says"),
                rows,
            ),
        ),
    )


def _shown(ending: dict[str, Any], rank: int) -> str:
    error, values = str(ending["errors"][rank]), ending["values"][rank]
    if error:
        return error if len(error) <= 60 else f"{error[:59]}…"
    return " ".join(f"{value:.3g}" for value in values) if values else "no result"


def draw(results: Results, figure: Figure) -> None:
    colours = {"right": GREEN, "wrong values": PURPLE, "hang": ORANGE, "crash": RED}
    axes = figure.add_subplot()
    for row, case in enumerate(WAYS):
        for column, (kind, colour) in enumerate(colours.items()):
            axes.barh(row, 0.8, left=column - 0.4, color=colour if kind == effect(results[case]) else PALE)
        verdict = results[case]["verdict"]
        words = f"{verdict['kind']}: look at rank {', '.join(map(str, verdict['ranks']))}" if verdict else "—"
        axes.text(len(colours) - 0.3, row, words, va="center", size=9, color=BLACK if verdict else GREY)
    titles = ["right", "wrong values,\nno error", "hang", "crash", "what explain says"]
    axes.set_xticks([*range(len(colours)), len(colours) + 0.9], titles)
    axes.xaxis.tick_top()
    label_rows(axes, [case if case != "nothing" else "(all agree)" for case in WAYS])
    axes.set_xlim(-0.6, len(colours) + 2.6)
    axes.spines[:].set_visible(False)
    axes.set_title("The last rank differs in …", pad=14)


EXPERIMENT = Experiment(
    measure,
    judge,
    draw,
    trials=1,
    cases=CASES,
    reported_case="order",
    code_on_page=(shape, dtype, reduce_op, order, effect),
)
