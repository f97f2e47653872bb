"""Ranks that keep the others waiting."""

from collections.abc import Iterator

from rollcall.explain.finding import Finding, of_ops
from rollcall.explain.table import Op
from rollcall.explain.view import View
from rollcall.explain.waits import is_waited_in, last_rows

_ENOUGH_CALLS, _MOST_OF_IT, _NOTABLE, _NOTABLE_S = 8, 0.7, 0.2, 0.3


def stragglers(view: View) -> Iterator[Finding]:
    """One rank that is last most of the time, and costs the others a good part of the run."""
    found = view.waits
    total_s = sum(found.caused_s.values())
    if found.calls < _ENOUGH_CALLS or not total_s or not found.run_s:
        return
    rank, caused_s = max(found.caused_s.items(), key=lambda item: item[1])
    others = max(len(view.run.ranks) - 1, 1)
    share = caused_s / others / found.run_s
    if (
        caused_s > _MOST_OF_IT * total_s
        and share > _NOTABLE
        and caused_s > _NOTABLE_S
        and found.last[rank] > found.calls / 2
    ):
        message = (
            f"rank {rank} was the last in {found.last[rank]} of {found.calls} calls, and the others waited for it"
            f" {share:.0%} of the time: without its delay the run would be that much shorter"
        )
        yield of_ops("straggler", [rank], message, _places(view, rank), waits=found.caused_s)


def _places(view: View, rank: int) -> list[Op]:
    """Where it spends its time: where the sampler saw it, and the call that it is late for."""
    lasts = last_rows(view.calls)[is_waited_in(view.calls)]
    late = lasts[view.table.rank[lasts] == rank]
    return [view.table.get(row) for row in late[-1:]]
