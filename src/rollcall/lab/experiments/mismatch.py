"""python -m rollcall.lab.experiments.mismatch

What if the ranks disagree? One rank calls all_reduce with another shape, another dtype, another reduce op; or the
same calls in another order; or names another root. Which of these crash, which hang, and which compute garbage in
silence?
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from rollcall import World
from rollcall.lab.experiment import Case, Results, Table, Verdict, always, usually
from rollcall.lab.plots import GREEN, GREY, ORANGE, PALE, PURPLE, RED, Figure
from rollcall.lab.runner.command import main

QUESTION = "what if the ranks disagree?"
TRIALS = 1
HANG_S = 3.0
Values = list[float]

# The odd one is always the last rank. Everyone brings ones: where all agree, each element of a sum is the world size.


def nothing(world: World, is_odd: bool) -> Values:
    """All agree."""
    tensor = torch.ones(4, device=world.device)
    dist.all_reduce(tensor)
    return tensor.tolist()


def shape(world: World, is_odd: bool) -> Values:
    """The last rank brings 3 elements, the others 4."""
    tensor = torch.ones(3 if is_odd else 4, device=world.device)
    dist.all_reduce(tensor)
    return tensor.tolist()


def dtype(world: World, is_odd: bool) -> Values:
    """The last rank brings whole numbers, the others floats; both of 32 bits."""
    tensor = torch.ones(4, device=world.device, dtype=torch.int32 if is_odd else torch.float32)
    dist.all_reduce(tensor)
    return [float(value) for value in tensor]


def reduce_op(world: World, is_odd: bool) -> Values:
    """The last rank takes the maximum, the others add."""
    tensor = torch.ones(4, device=world.device)
    dist.all_reduce(tensor, dist.ReduceOp.MAX if is_odd else dist.ReduceOp.SUM)
    return tensor.tolist()


def order(world: World, is_odd: bool) -> Values:
    """The last rank broadcasts first and adds up afterwards, the others the other way round."""
    tensor = torch.ones(4, device=world.device)
    setting = torch.full((4,), 7.0, device=world.device) if world.is_first else torch.zeros(4, device=world.device)
    if is_odd:
        dist.broadcast(setting, src=0)
        dist.all_reduce(tensor)
    else:
        dist.all_reduce(tensor)
        dist.broadcast(setting, src=0)
    return tensor.tolist()


def root(world: World, is_odd: bool) -> Values:
    """The last rank takes rank 1 for the source of a broadcast, the others rank 0; then all add up."""
    setting = torch.full((4,), float(world.rank), device=world.device)
    dist.broadcast(setting, src=1 if is_odd else 0)
    tensor = torch.ones(4, device=world.device) + setting
    dist.all_reduce(tensor)
    return tensor.tolist()


def absence(world: World, is_odd: bool) -> Values:
    """The last rank leaves an all_reduce out, and goes on to a barrier."""
    tensor = torch.ones(4, device=world.device)
    if not is_odd:
        dist.all_reduce(tensor)
    world.barrier()
    return tensor.tolist()


WAYS: dict[str, Callable[[World, bool], Values]] = {
    "nothing": nothing,
    "shape": shape,
    "dtype": dtype,
    "reduce op": reduce_op,
    "order": order,
    "root": root,
    "absence": absence,
}
CASES = tuple(
    Case(name, (way.__doc__ or "").strip())
    if way is nothing
    else Case(name, (way.__doc__ or "").strip(), limit_s=HANG_S, may_fail=True)
    for name, way in WAYS.items()
)
REPORTED_CASE = "order"


def measure(world: World, case: str, trials: int) -> Values:
    return WAYS[case](world, world.rank == world.size - 1)


def fate(ending: dict[str, Any]) -> str:
    """What became of it: right, garbage in silence, crash, hang."""
    if ending["ended"] != "well":
        return {"failed": "crash", "hung": "hang"}[ending["ended"]]
    right = float(len(ending["values"]))
    is_right = all(value == right for values in ending["values"] for value in values) and all(ending["values"])
    return "right" if is_right and len({len(values) for values in ending["values"]}) == 1 else "garbage"


def judge(results: Results) -> Verdict:
    fates = {case: fate(ending) for case, ending in results.items()}
    kinds = {case: (ending["verdict"] or {}).get("kind", "nothing") for case, ending in results.items()}
    bugs = [case for case in WAYS if case != "nothing"]
    by_fate = {kind: [case for case in bugs if fates[case] == kind] for kind in ("crash", "hang", "garbage", "right")}
    last = len(results["nothing"]["values"]) - 1
    named = [case for case in bugs if kinds[case] != "nothing" and last in results[case]["verdict"]["ranks"]]
    listed = {kind: ", ".join(cases) or "none" for kind, cases in by_fate.items()}
    return Verdict(
        f"of {len(bugs)} disagreements {len(by_fate['crash'])} crash ({listed['crash']}), {len(by_fate['hang'])} hang"
        f" ({listed['hang']}) and {len(by_fate['garbage'])} compute garbage in silence ({listed['garbage']})"
        + (f"; {listed['right']} came out right by luck" if by_fate["right"] else "")
        + f". explain found something in {sum(kinds[case] != 'nothing' for case in bugs)} of them, with the odd"
        f" rank among"
        f" those to look at in {len(named)}, and"
        f" {'nothing' if kinds['nothing'] == 'nothing' else kinds['nothing']} where"
        f" all agree",
        {"fates": fates, "explain": kinds, "odd_rank": last},
        (
            always("where all agree, the sum is right", fates["nothing"] == "right"),
            always("where all agree, explain says nothing", kinds["nothing"] == "nothing"),
            usually("another reduce op is never noticed: garbage", fates["reduce op"] == "garbage"),
            usually("explain finds something in each", all(kinds[case] != "nothing" for case in bugs)),
        ),
        (
            Table(
                "What became of each",
                ("disagreement", "what it does", "rank 0 has", f"rank {last} has", "explain says"),
                tuple(
                    (
                        case,
                        fates[case],
                        _shown(results[case], 0),
                        _shown(results[case], last),
                        kinds[case],
                    )
                    for case in WAYS
                ),
            ),
        ),
    )


def _shown(ending: dict[str, Any], rank: int) -> str:
    if ending["errors"][rank]:
        said = str(ending["errors"][rank])
        return said if len(said) <= 60 else f"{said[:59]}…"
    values = ending["values"][rank]
    return " ".join(f"{value:.3g}" for value in values) if values else "no result"


def draw(results: Results, figure: Figure) -> None:
    colours = {"right": GREEN, "garbage": PURPLE, "hang": ORANGE, "crash": RED}
    columns = list(colours)
    axes = figure.add_subplot()
    for row, case in enumerate(WAYS):
        found = fate(results[case])
        for column, kind in enumerate(columns):
            axes.add_patch(_cell(column, row, colours[kind] if kind == found else PALE))
        verdict = results[case]["verdict"]
        said = f"{verdict['kind']}: look at rank {', '.join(map(str, verdict['ranks']))}" if verdict else "—"
        axes.text(len(columns) - 0.3, row, said, va="center", size=9, color="#222222" if verdict else GREY)
    axes.set_xticks(
        [*range(len(columns)), len(columns) + 0.9],
        ["right", "garbage,\nin silence", "hang", "crash", "what explain says"],
    )
    axes.xaxis.tick_top()
    axes.set_yticks(range(len(WAYS)), [case if case != "nothing" else "(all agree)" for case in WAYS])
    axes.tick_params(length=0)
    axes.set_xlim(-0.6, len(columns) + 2.6)
    axes.set_ylim(len(WAYS) - 0.4, -0.6)
    axes.spines[:].set_visible(False)
    axes.set_title("The last rank disagrees in …", pad=14)


def _cell(x: float, y: float, colour: str) -> Any:
    from matplotlib.patches import FancyBboxPatch

    return FancyBboxPatch((x - 0.34, y - 0.28), 0.68, 0.56, boxstyle="round,pad=0.04", fc=colour, ec="none")


CODE_ON_PAGE = (shape, dtype, reduce_op, order, fate)
NEXT = (
    "`rollcall run -n 4 -m rollcall.lab.experiments.mismatch --case 'reduce op'`, then `rollcall explain`:"
    " garbage, and it is named",
    "`rollcall lab mismatch -n 2`: with two ranks nobody can say who is the odd one",
)

if __name__ == "__main__":
    main(__file__)
