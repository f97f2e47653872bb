"""The same calls, on some ranks in another order."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollcall.explain import source
from rollcall.explain.effects import effect_of_call
from rollcall.explain.evidence import Evidence
from rollcall.explain.findings import Effect, Finding, of_call, where
from rollcall.explain.loading.table import Op
from rollcall.explain.matching import deviants
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
    found = _sequences(evidence, number, name)
    if found is None:
        return None  # a ring had no room for their lines or shapes
    rows, keys = found
    for length in range(2, _AHEAD + 1):
        heads = {rank: key[:length] for rank, key in keys.items() if len(key) >= length}
        # A rank that died on the way has made only the first calls of one of these orders: it counts for that order.
        orders = set(heads.values())
        for rank, key in keys.items():
            if rank not in heads:
                like = {head for head in orders if head[: len(key)] == key}
                if not like:
                    return None
                heads |= {rank: like.pop()} if len(like) == 1 else {}
        if len({tuple(sorted(head)) for head in orders}) == 1 and len(orders) > 1:
            return _other_order(evidence, number, length, rows, deviants(heads))
    return None


def _other_order(evidence: Evidence, number: int, length: int, rows: dict[int, list[int]], odd: list[int]) -> Finding:
    """`rows`: by rank, those of this call and the next ones. `odd`: the ranks with another order."""
    call = evidence.calls.get(number)
    ops = [evidence.table.get(row) for row in rows[odd[0]][:length]]
    kind = "order-inversion" if all(op.is_async for op in ops) else "order-swap"
    others = [row for rank in call.ops if rank not in odd for row in rows[rank][:length]][:length]
    calls = f"the same {length} calls as the others" if others else f"the same {length} calls, some of them"
    message = f"{ranks_in_words(odd)} made {calls} in another order, from {where(ops[0])} on"
    return of_call(kind, call, odd, message, [*ops, *map(evidence.table.get, others)])


def _sequences(
    evidence: Evidence, number: int, name: Callable[[Op], Any]
) -> tuple[dict[int, list[int]], dict[int, tuple[int, ...]]] | None:
    """By rank of a call: the rows of its op and of its next ones in the group, and a number for each that says what it
    is. None if that is not known of one of them."""
    table, calls = evidence.table, evidence.calls
    after = np.flatnonzero(calls.groups[number : number + _AHEAD] == calls.groups[number]) + number
    rows = calls.rows[calls.starts[number] : calls.starts[after[-1]] + calls.sizes[after[-1]]]
    rows = rows[np.isin(table.rank[rows], table.rank[calls.rows_of(number)])]
    kinds = _kinds(evidence, rows, name)
    if kinds is None:
        return None
    by_rank: dict[int, list[int]] = {}
    keys: dict[int, list[int]] = {}
    for rank, row, kind in zip(table.rank[rows].tolist(), rows.tolist(), kinds, strict=True):
        by_rank.setdefault(rank, []).append(row)
        keys.setdefault(rank, []).append(kind)
    return by_rank, {rank: tuple(numbers) for rank, numbers in keys.items()}


def _kinds(evidence: Evidence, rows: NDArray[np.int32], name: Callable[[Op], Any]) -> list[int] | None:
    """Per row a number, the same for the same call on the same line; only ops that differ become objects."""
    table = evidence.table
    columns = (table.op, table.signature, table.reduce, table.peer, table.site)
    values = np.stack([column[rows].astype(np.int64) for column in columns], axis=1)
    _, first, kind = np.unique(values, axis=0, return_index=True, return_inverse=True)
    ops = [table.get(row) for row in rows[first]]
    if len({op.site is None for op in ops}) > 1 or not all(op.signature for op in ops):
        return None  # where no op has a line, as in dumps without stacks, their arguments alone tell
    numbers: dict[tuple[Any, ...], int] = {}
    same = np.array([numbers.setdefault(_key(op, name), len(numbers)) for op in ops])
    found: list[int] = same[kind.ravel()].tolist()
    return found


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
