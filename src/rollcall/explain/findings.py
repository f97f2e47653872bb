"""A finding: something that is wrong, with its evidence; and the words in which findings are told."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rollcall.explain import source
from rollcall.explain.loading.table import Op, Site
from rollcall.explain.matching import Call
from rollcall.protocol.rank_ranges import ranks_in_words

# What a finding has done to the run: it ended it or keeps it waiting; it went on with wrong results, or more slowly; or
# nothing, and it is advice.
Effect = Literal["stopped", "wrong", "slow", "advice"]


@dataclass(frozen=True)
class Finding:
    """What is wrong, which ranks to look at, in which call, on which lines. Nothing comes from the texts of errors."""

    kind: str
    ranks: tuple[int, ...]
    message: str
    op: str = ""
    group: str = ""
    seq: int = 0
    sites: tuple[Site, ...] = ()
    since_ns: int = 0  # when it went wrong
    evidence: dict[str, Any] = field(default_factory=dict)
    effect: Effect = "stopped"

    @property
    def is_advice(self) -> bool:
        return self.effect == "advice"


def of_call(kind: str, call: Call, ranks: Iterable[int], message: str, ops: Iterable[Op], **evidence: Any) -> Finding:
    first = min(call.ops.values(), key=lambda op: op.entered_ns)
    looked_at = tuple(sorted(ranks))
    return Finding(
        kind, looked_at, message, first.op, call.group.name, call.seq, sites(ops), first.entered_ns, evidence
    )


def of_ops(kind: str, ranks: Iterable[int], message: str, ops: list[Op], **evidence: Any) -> Finding:
    first = ops[0]
    return Finding(
        kind,
        tuple(sorted(ranks)),
        message,
        first.op,
        first.group.name,
        first.seq,
        sites(ops),
        first.entered_ns,
        evidence,
    )


def wait_in(ops: Sequence[Op]) -> str:
    """`ranks 0,2 wait in all_reduce at train.py:12`."""
    return f"{ranks_in_words(op.rank for op in ops)} wait{'s' * (len(ops) == 1)} in {where(ops[0])}"


def each(values: dict[int, Any]) -> str:
    """`rank 0: a; ranks 1-2: b`. The values of most ranks first; of very many different ones, a few."""
    by_value: dict[str, list[int]] = {}
    for rank, value in sorted(values.items()):
        by_value.setdefault(str(value), []).append(rank)
    told = list(by_value.items())
    if len(told) > _MOST_VALUES:
        told = sorted(told, key=lambda item: -len(item[1]))[:_MOST_VALUES]
    words = [f"{ranks_in_words(numbers)}: {value}" for value, numbers in told]
    if len(by_value) > len(told):
        others = sum(map(len, by_value.values())) - sum(len(numbers) for _, numbers in told)
        words.append(f"{others} other ranks: {len(by_value) - len(told)} other values")
    return "; ".join(words)


_MOST_VALUES = 4  # more do not fit into a sentence; --json has all


def in_ops(ops: Iterable[Op]) -> str:
    """`ranks 0-1 in send at train.py:7, rank 2 in barrier at train.py:9`."""
    alike: dict[str, list[int]] = {}
    for op in ops:
        alike.setdefault(where(op), []).append(op.rank)
    return _few(f"{ranks_in_words(ranks)} in {place}" for place, ranks in alike.items())


def in_circle(ops: Sequence[Op]) -> str:
    """Who is where and waits for whom. Of many ranks, the pattern: `each of ranks 0-1022 in send at train.py:7 for the
    next one, rank 1023 in send at train.py:7 for rank 0`. Where most ranks follow none, the first of them."""
    alike: dict[tuple[str, int], list[Op]] = {}
    for op in ops:
        alike.setdefault((where(op), op.peer - op.rank), []).append(op)
    patterns = sorted(alike.values(), key=lambda found: -len(found))
    if len(ops) <= _FEW_OPS or sum(map(len, patterns[:_MOST_VALUES])) * 2 < len(ops):
        return _few(map(_waits_for_peer, ops))
    return _few(map(_wait_for_peers, patterns))


_FEW_OPS = 4  # that are told one by one


def _waits_for_peer(op: Op) -> str:
    return f"rank {op.rank} in {where(op)} for rank {op.peer}"


def _wait_for_peers(ops: list[Op]) -> str:
    """Describes ops on one line whose peers are equally far from them."""
    if len(ops) == 1:
        return _waits_for_peer(ops[0])
    away = ops[0].peer - ops[0].rank
    far = f"the rank {abs(away)} {'after' if away > 0 else 'before'} it"
    peer = {1: "the next one", -1: "the one before it"}.get(away, far)
    return f"each of {ranks_in_words(op.rank for op in ops)} in {where(ops[0])} for {peer}"


def _few(words: Iterable[str]) -> str:
    told = list(words)
    more = f", and {len(told) - _MOST_VALUES} more such" if len(told) > _MOST_VALUES else ""
    return ", ".join(told[:_MOST_VALUES]) + more


def where(op: Op) -> str:
    return f"{op.op} at {op.site}" if op.site else op.op


def sites(ops: Iterable[Op]) -> tuple[Site, ...]:
    """The lines of the ops, then the lines at which their ranks went different ways."""
    own = tuple(dict.fromkeys(op.site for op in ops if op.site is not None))
    known = {(site.file, site.line) for site in own}
    diverging = [line for site in own[1:] for line in source.diverging_lines(own[0], site)]
    return (
        own + tuple(dict.fromkeys(line for line in diverging if (line.file, line.line) not in known))[:_MOST_DIVERGING]
    )


_MOST_DIVERGING = 4  # lines: two pairs of ranks that went different ways


_NUMBER = re.compile(r"\d+")


def folded(findings: list[Finding]) -> list[Finding]:
    """Findings of the same kind on the same lines are one finding, about all their ranks. The first tells what it
    is."""
    alike: dict[tuple[Any, ...], list[Finding]] = {}
    for finding in findings:
        words = "" if finding.sites else _NUMBER.sub("#", finding.message)  # without lines, the words tell them apart
        key = (finding.kind, finding.effect, finding.op, finding.group, finding.sites, words)
        alike.setdefault(key, []).append(finding)
    return [_fold(found) if len(found) > 1 else found[0] for found in alike.values()]


def _fold(findings: list[Finding]) -> Finding:
    first = min(findings, key=lambda finding: finding.since_ns)
    ranks = tuple(sorted({rank for finding in findings for rank in finding.ranks}))
    others = [rank for rank in ranks if rank not in set(first.ranks)]
    message = f"{first.message}; the same of {ranks_in_words(others)}" if others else first.message
    return replace(first, ranks=ranks, message=message)
