"""The same calls, on some ranks in another order."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from rollcall.explain import source
from rollcall.explain.effects import effect_of_call
from rollcall.explain.evidence import Evidence
from rollcall.explain.findings import Effect, Finding, of_call, where
from rollcall.explain.matching import deviants
from rollcall.explain.table import Op
from rollcall.protocol.rank_ranges import ranks_in_words

_AHEAD = 8  # by how many calls two ranks may be out of step: a few losses, or the layers of a block; more cost time


def _line(op: Op) -> Any:
    return op.site and (op.site.file, op.site.line)


def _texts(op: Op) -> Any:
    """What stands on its line, and on those of its callers."""
    return op.site and tuple(source.text_of(site) or str(site) for site in op.site.chain)


def permutation(evidence: Evidence, number: int, name: Callable[[Op], Any] = _line) -> Finding | None:
    """From this call on, all ranks make the same ops, only not in the same order. `name`: what tells calls apart that
    have the same arguments."""
    call = evidence.calls.get(number)
    sequences = {rank: _sequence(evidence, op) for rank, op in call.ops.items()}
    if any(op.site is None or not op.signature for sequence in sequences.values() for op in sequence):
        return None  # a ring had no room for them
    keys = {rank: tuple(_key(op, name) for op in sequence) for rank, sequence in sequences.items()}
    for length in range(2, _AHEAD + 1):
        heads = {rank: key[:length] for rank, key in keys.items() if len(key) >= length}
        # A rank that died on the way has made only the first calls of one of these orders: it counts for that order.
        for rank, key in keys.items():
            if rank not in heads:
                like = {head for head in heads.values() if head[: len(key)] == key}
                if not like:
                    return None
                heads |= {rank: like.pop()} if len(like) == 1 else {}
        if len({tuple(sorted(map(str, head))) for head in heads.values()}) == 1 and len(set(heads.values())) > 1:
            odd = deviants(heads)
            ops = sequences[odd[0]][:length]
            is_async = all(op.is_async for op in ops)
            kind = "order-inversion" if is_async else "order-swap"
            others = [op for rank in call.ops if rank not in odd for op in sequences[rank][:length]][:length]
            message = (
                f"{ranks_in_words(odd)} made the same {length} calls as the others in another order, from"
                f" {where(ops[0])} on"
            )
            return of_call(kind, call, odd, message, [*ops, *others])
    return None


def _sequence(evidence: Evidence, op: Op) -> list[Op]:
    """This op of a rank and the next ones in its group."""
    table = evidence.table
    _, end = table.spans[op.rank]
    rows = np.arange(op.row, end)
    rows = rows[(table.group[rows] == table.group[op.row]) & ~table.is_event[rows]]
    return [table.get(row) for row in rows[: _AHEAD * 2] if not table.get(row).is_point_to_point][:_AHEAD]


def _key(op: Op, name: Callable[[Op], Any]) -> tuple[Any, ...]:
    return op.op, str(op.signature), op.reduce, op.peer, name(op)


def inversions(evidence: Evidence) -> Iterator[Finding]:
    """Calls that match by chance: the same op and shape on all ranks, from lines that are swapped on some; or that
    stand in the branches of an `if`, in another order in each."""
    table, calls = evidence.table, evidence.calls
    candidates = calls.has_all & calls.differ_in(table.site) & ~calls.differ_in(table.op, table.signature)
    for number in calls.unlike(candidates, table.site):
        finding = permutation(evidence, number) or permutation(evidence, number, _texts)
        if finding is not None:
            call = calls.get(number)
            effect: Effect = "advice" if finding.op == "barrier" else effect_of_call(evidence, call)
            yield replace(finding, effect=effect)  # barriers carry nothing that could be mixed up
            return
