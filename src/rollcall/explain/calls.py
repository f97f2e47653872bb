"""Ops of all ranks that belong together: the n-th collective of a group; a send with its receive."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

from rollcall.explain.load import Group, Op, Run


@dataclass(frozen=True)
class Call:
    """The n-th collective of a group: what each of its ranks did there."""

    group: Group
    seq: int
    ops: dict[int, Op]

    @property
    def missing(self) -> list[int]:
        return [rank for rank in self.group.ranks if rank not in self.ops]

    @property
    def blocked(self) -> list[int]:
        return [rank for rank, op in self.ops.items() if op.is_blocked]


@dataclass(frozen=True)
class Pair:
    """A send and its receive; one of them may be missing."""

    send: Op | None
    recv: Op | None


def collectives(run: Run) -> list[Call]:
    """All calls, group by group, in their order. Those before the oldest that each ring still has are left out."""
    found: dict[tuple[Group, int], dict[int, Op]] = defaultdict(dict)
    first: dict[Group, int] = {}
    for rank in run.ranks.values():
        seen: set[Group] = set()
        for op in rank.ops:
            if op.is_point_to_point or op.is_strange or op.op == "ddp_forward":
                continue
            if op.group not in seen and rank.dropped:
                first[op.group] = max(first.get(op.group, 0), op.seq)
            seen.add(op.group)
            found[op.group, op.seq][rank.number] = op
    calls = [Call(group, seq, ops) for (group, seq), ops in found.items() if seq >= first.get(group, 0)]
    return sorted(calls, key=lambda call: min(op.entered_ns for op in call.ops.values()))


def pairs(run: Run) -> list[Pair]:
    """Sends and receives, matched as the network does it: by sender, receiver and tag, in order."""
    sends: dict[Hashable, list[Op]] = defaultdict(list)
    recvs: dict[Hashable, list[Op]] = defaultdict(list)
    anywhere: list[Op] = []
    for op in _all(run):
        if op.op == "send":
            sends[op.group, op.rank, op.peer, op.tag].append(op)
        elif op.op == "recv" and op.peer >= 0:
            recvs[op.group, op.peer, op.rank, op.tag].append(op)
        elif op.op == "recv":
            anywhere.append(op)
    matched: list[Pair] = []
    for key in {*sends, *recvs}:
        ours, theirs = sends.get(key, []), recvs.get(key, [])
        for place in range(max(len(ours), len(theirs))):
            matched.append(
                Pair(ours[place] if place < len(ours) else None, theirs[place] if place < len(theirs) else None)
            )
    return _from_anyone(matched, anywhere)


def _from_anyone(matched: list[Pair], anywhere: list[Op]) -> list[Pair]:
    """A receive from anyone takes a send that nobody else took."""
    for recv in anywhere:
        free = [p for p in matched if p.recv is None and p.send and (p.send.peer, p.send.tag) == (recv.rank, recv.tag)]
        if free:
            matched.remove(free[0])
            matched.append(Pair(free[0].send, recv))
        else:
            matched.append(Pair(None, recv))
    return matched


def _all(run: Run) -> Iterator[Op]:
    for rank in run.ranks.values():
        yield from rank.ops


def deviants(values: dict[int, Any]) -> list[int]:
    """The ranks that differ from the majority; all of them where there is none."""
    counts = Counter(values.values())
    (common, most), *rest = counts.most_common()
    if not rest:
        return []
    if rest[0][1] == most or len(values) < 3:
        return sorted(values)
    return sorted(rank for rank, value in values.items() if value != common)
