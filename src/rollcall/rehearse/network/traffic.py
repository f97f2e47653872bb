"""From the recorded ops to the bytes that hosts send each other in one step, by the formulas of `algorithms`.

Ops on GPU tensors are counted by nccl's rings, in the order of ranks; all_reduce also by its trees. Others by gloo's
algorithms.
Headers of packets, barriers, and what torch exchanges when a group is made are not counted.
"""

import functools
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rollcall.explain.loading.load import Run
from rollcall.explain.loading.table import Op
from rollcall.rehearse.network import algorithms
from rollcall.units import in_bytes, plural

Matrix = dict[tuple[int, int], float]  # from host, to host: bytes
_OWN = ("send", "all_to_all")  # each rank records what it sends itself


@dataclass(frozen=True)
class LineTraffic:
    """Ops of one line, together."""

    op: str
    place: str
    is_bucket: bool
    count: int
    size_bytes: float  # between hosts
    busiest_bytes: float  # over the busiest link of a host, in the busier direction
    serial_bytes: float  # the same, summed over rounds that wait for each other: what its time follows from


@dataclass
class Traffic:
    """The traffic of one step, or of the whole run if there is no step."""

    is_step: bool
    hosts: int
    matrix: Matrix = field(default_factory=dict)
    tree_matrix: Matrix = field(default_factory=dict)  # with nccl's trees in place of its rings
    calls: tuple[LineTraffic, ...] = ()  # the largest first
    backends: tuple[str, ...] = ()

    def sent_by(self, matrix: Matrix) -> dict[int, float]:
        sent: dict[int, float] = defaultdict(float)
        for (source, _), size_bytes in matrix.items():
            sent[source] += size_bytes
        return sent


@dataclass(frozen=True)
class _Sum:
    """Ops that only differ in their sizes."""

    op: str
    ranks: tuple[int, ...]
    peer: int
    sender: int  # of ops of which each rank records its own part; -1: one rank records all
    on_gpu: bool
    place: str
    is_bucket: bool


def measure(run: Run, marks: dict[int, list[int]], gpus_per_host: int) -> Traffic:
    """`marks`: by rank, how many records it had written at the end of each optimizer step."""
    sums: dict[_Sum, list[float]] = defaultdict(lambda: [0, 0.0])
    for op in _calls_of_step(run, marks):
        found = sums[_kind(op)]
        found[0] += 1
        found[1] += op.size_bytes
    return _added_up(sums, gpus_per_host, run.world_size, any(len(each) > 1 for each in marks.values()))


def _calls_of_step(run: Run, marks: dict[int, list[int]]) -> Iterator[Op]:
    """One op of each collective, and all ops of which each rank records its own part."""
    table, told = run.table, set[tuple[int, int, int]]()
    is_counted = table.is_one_of(*algorithms.NCCL_RING, *_OWN) & ~table.has_failed & (table.size_bytes > 0)
    is_own = table.is_one_of(*_OWN)
    for rank, (start, end) in sorted(table.spans.items()):
        first, last = _step(marks.get(rank, []), end - start)
        for row in start + first + np.flatnonzero(is_counted[start + first : start + last]):
            call = int(table.group[row]), int(table.op[row]), int(table.seq[row])
            if is_own[row] or call not in told:
                told.add(call)
                yield table.get(row)


def _step(marks: list[int], records: int) -> tuple[int, int]:
    """The ops between the last two steps. With one step, those before it; without steps, all."""
    if len(marks) > 1:
        return marks[-2], marks[-1]
    return 0, marks[0] if marks else records


def _kind(op: Op) -> _Sum:
    is_own = op.op in _OWN
    place = str(op.site) if op.site else "?"
    on_gpu = op.signature.get("device") == "cuda"
    return _Sum(op.op, op.group.ranks, op.peer, op.rank if is_own else -1, on_gpu, place, op.is_bucket)


def _added_up(sums: dict[_Sum, list[float]], each: int, world_size: int, is_step: bool) -> Traffic:
    whole: Matrix = defaultdict(float)
    trees: Matrix = defaultdict(float)
    calls: dict[tuple[str, str, bool], list[Any]] = defaultdict(lambda: [0, defaultdict(float), 0.0])
    for kind, (count, size_bytes) in sums.items():
        rings = _between_hosts(kind, size_bytes, each)
        found = calls[kind.op, kind.place, kind.is_bucket]
        found[0] += int(count)
        found[2] += _later_rounds(kind, size_bytes, each, rings)
        for pair, part in rings.items():
            whole[pair] += part
            found[1][pair] += part
        for pair, part in _by_trees(kind, size_bytes, each, rings).items():
            trees[pair] += part
    backends = sorted({"nccl" if kind.on_gpu else "gloo" for kind in sums})
    ranked = sorted((_call(*key, *found) for key, found in calls.items()), key=lambda call: -call.size_bytes)
    return Traffic(is_step, -(-world_size // each), dict(whole), dict(trees), tuple(ranked), tuple(backends))


def _call(op: str, place: str, is_bucket: bool, count: int, matrix: Matrix, later_bytes: float) -> LineTraffic:
    busiest = _busiest(matrix)
    return LineTraffic(op, place, is_bucket, count, sum(matrix.values()), busiest, busiest + later_bytes)


def _later_rounds(kind: _Sum, size_bytes: float, each: int, whole: Matrix) -> float:
    """How much longer gloo takes than its bytes need on the busiest link: parts wait until others are sent."""
    if kind.on_gpu:
        return 0.0
    if kind.op == "all_to_all":
        return _late_bytes(kind, size_bytes, each)
    return _broadcast_rounds(kind, size_bytes, each, whole) if kind.op == "broadcast" else 0.0


def _late_bytes(kind: _Sum, size_bytes: float, each: int) -> float:
    """Each rank records its own op: only the rank that comes last adds something."""
    last, share = _last_rank(kind.ranks, each)
    return share * size_bytes if kind.sender == last else 0.0


@functools.cache
def _last_rank(ranks: tuple[int, ...], each: int) -> tuple[int, float]:
    """It is not known which rank comes last to an all_to_all. Assumed is the rank that would wait for the most bytes
    from other hosts. Also returns which share of its bytes that is."""
    late = [_busiest(_on_hosts(algorithms.gloo_late_parts(1.0, len(ranks), n), ranks, each)) for n in range(len(ranks))]
    return ranks[late.index(max(late))], max(late)


def _broadcast_rounds(kind: _Sum, size_bytes: float, each: int, whole: Matrix) -> float:
    """Each round waits for the one before."""
    ranks = kind.ranks
    root = ranks.index(kind.peer) if kind.peer in ranks else 0
    rounds = algorithms.gloo_broadcast_rounds(size_bytes, len(ranks), root)
    return sum(_busiest(_on_hosts(parts, ranks, each)) for parts in rounds) - _busiest(whole)


def _on_hosts(parts: Iterable[algorithms.Part], ranks: tuple[int, ...], each: int) -> Matrix:
    found: Matrix = defaultdict(float)
    for source, target, part in parts:
        pair = ranks[source] // each, ranks[target] // each
        if pair[0] != pair[1]:
            found[pair] += part
    return found


def _busiest(matrix: Matrix) -> float:
    sent: dict[int, float] = defaultdict(float)
    received: dict[int, float] = defaultdict(float)
    for (source, target), size_bytes in matrix.items():
        sent[source] += size_bytes
        received[target] += size_bytes
    return max([*sent.values(), *received.values()], default=0.0)


def _between_hosts(kind: _Sum, size_bytes: float, each: int) -> Matrix:
    found: Matrix = defaultdict(float)
    for source, target, part in _between_ranks(kind, size_bytes):
        pair = source // each, target // each
        if pair[0] != pair[1]:
            found[pair] += part
    return found


def _between_ranks(kind: _Sum, size_bytes: float) -> Iterator[algorithms.Part]:
    ranks, size = kind.ranks, len(kind.ranks)
    if kind.op == "send":
        yield kind.sender, kind.peer, size_bytes
        return
    algorithm = (algorithms.NCCL_RING if kind.on_gpu else algorithms.GLOO).get(kind.op)
    if algorithm is None or size < 2:
        return
    root = ranks.index(kind.peer) if kind.peer in ranks else 0
    for source, target, part in algorithm(size_bytes, size, root):
        if kind.sender in (-1, ranks[source]):
            yield ranks[source], ranks[target], part


def _by_trees(kind: _Sum, size_bytes: float, each: int, rings: Matrix) -> Matrix:
    hosts = sorted({rank // each for rank in kind.ranks})
    if kind.op != "all_reduce" or not kind.on_gpu or len(hosts) < 2:
        return rings
    found: Matrix = defaultdict(float)
    for source, target, part in algorithms.tree(size_bytes, len(hosts)):
        found[hosts[source], hosts[target]] += part
    return found


def lines(traffic: Traffic) -> Iterator[str]:
    if traffic.hosts < 2 or not traffic.calls:
        return
    sent = traffic.sent_by(traffic.matrix)
    if not sent:
        yield "traffic   nothing goes from host to host"
        return
    when = "a step" if traffic.is_step else "in all"
    yield f"traffic   {when}: {_sent(sent, traffic.hosts)}{_trees(traffic)}, {_largest(traffic)}; {_how(traffic)}"


def _sent(sent: dict[int, float], hosts: int) -> str:
    least, most = min(sent.values()) if len(sent) == hosts else 0.0, max(sent.values())
    if most - least < 0.005 * most:
        return f"{in_bytes(most)} sent by each host"
    return f"{in_bytes(least)} to {in_bytes(most)} sent by each host"


def _trees(traffic: Traffic) -> str:
    most = max(traffic.sent_by(traffic.tree_matrix).values(), default=0.0)
    ring = max(traffic.sent_by(traffic.matrix).values())
    return f" ({in_bytes(most)} at most by trees)" if abs(most - ring) > 0.005 * ring else ""


def _largest(traffic: Traffic) -> str:
    call = traffic.calls[0]
    times = f"{plural(call.count, 'bucket')}" if call.is_bucket else f"{call.count:,} ×"
    return f"{in_bytes(call.busiest_bytes)} in {call.op} at {call.place} ({'DDP, ' * call.is_bucket}{times})"


def _how(traffic: Traffic) -> str:
    words = {"nccl": "by the formula of nccl's rings", "gloo": "by gloo's algorithms"}
    return " and ".join(words[each] for each in traffic.backends)


def as_json(traffic: Traffic) -> dict[str, Any]:
    return {
        "hosts": traffic.hosts,
        "of": "step" if traffic.is_step else "run",
        "backends": list(traffic.backends),
        "between_hosts": _pairs(traffic.matrix),
        "between_hosts_by_trees": _pairs(traffic.tree_matrix) if traffic.tree_matrix != traffic.matrix else None,
        "calls": [vars(call) for call in traffic.calls],
    }


def write(path: Path, traffic: Traffic) -> None:
    """Writes the data for the page."""
    path.write_text(json.dumps(as_json(traffic)))


def _pairs(matrix: Matrix) -> list[dict[str, Any]]:
    return [
        {"from": source, "to": target, "bytes": round(size_bytes)}
        for (source, target), size_bytes in sorted(matrix.items())
    ]
