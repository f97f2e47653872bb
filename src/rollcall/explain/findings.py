"""A finding: something that is wrong, with its evidence; and the words in which findings are told."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rollcall.explain import source
from rollcall.explain.matching import Call
from rollcall.explain.table import Op, Site
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
    """`rank 0: a; ranks 1-2: b`."""
    by_value: dict[str, list[int]] = {}
    for rank, value in sorted(values.items()):
        by_value.setdefault(str(value), []).append(rank)
    return "; ".join(f"{ranks_in_words(numbers)}: {value}" for value, numbers in by_value.items())


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


_MOST_DIVERGING = 4
