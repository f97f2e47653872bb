"""Healthy programs as they would run, op by op, on a simulated clock: what explain may say of them at any moment is
nothing."""

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from rollcall.record import ring_format
from tests.report.rings import FakeOp

ASYNC, WAITED, BUCKET = ring_format.ASYNC, ring_format.WAITED, ring_format.BUCKET
_COMM_MS = 0.4


@dataclass
class Step:
    """One thing that a rank does: it computes, makes an op, waits for async ones, or ends a phase."""

    kind: str  # compute, op, issue, wait, phase, end
    ms: float = 0.0
    op: FakeOp = field(default_factory=lambda: FakeOp("barrier", 0, 0))
    key: Any = None  # of what is issued and waited for, or of a phase


Program = Iterator[Step]


def compute(ms: float) -> Step:
    return Step("compute", ms)


def call(op: str, **facts: Any) -> Step:
    return Step("op", op=FakeOp(op, 0, 0, **facts))


def issue(key: Any, op: str, flags: int = 0, **facts: Any) -> Step:
    return Step("issue", op=FakeOp(op, 0, 0, flags=ASYNC | flags, **facts), key=key)


def wait(*keys: Any) -> Step:
    return Step("wait", key=keys)


class Simulation:
    """Runs one program per rank: a collective ends when all ranks of its group came, a receive when it was sent."""

    def __init__(self, programs: list[Program], groups: dict[str, list[int]]) -> None:
        self._programs, self._groups = programs, {"0": list(range(len(programs))), **groups}
        self.ops: list[list[FakeOp]] = [[] for _ in programs]
        self._now = [0.0] * len(programs)
        self._seqs: defaultdict[tuple[int, str, bool], int] = defaultdict(int)
        self._come: defaultdict[tuple[Any, ...], dict[int, float]] = defaultdict(dict)
        self._turns: defaultdict[tuple[Any, ...], int] = defaultdict(int)
        self._open: dict[tuple[int, Any], tuple[int, tuple[Any, ...]]] = {}  # by rank and key: place, and its call

    def run(self) -> list[list[FakeOp]]:
        waiting: dict[int, tuple[Step, Any]] = {}
        left = set(range(len(self._programs)))
        while left:
            before = len(left), len(waiting), list(self._now)
            for rank in sorted(left):
                if rank in waiting and not self._end(rank, *waiting[rank]):
                    continue
                waiting.pop(rank, None)
                step = next(self._programs[rank], None)
                if step is None:
                    left.discard(rank)
                elif (blocked := self._begin(rank, step)) is not None:
                    waiting[rank] = step, blocked
            assert (len(left), len(waiting), self._now) != before or not left, "the timeline itself hangs"
        return self.ops

    def _begin(self, rank: int, step: Step) -> Any:
        """What the rank then waits for; None: nothing."""
        self._now[rank] += 0.002
        if step.kind == "compute":
            self._now[rank] += step.ms
        elif step.kind in ("op", "issue"):
            place, met = self._enter(rank, step.op)
            if step.kind == "op":
                return [(place, met)]
            self.ops[rank][place] = replace(self.ops[rank][place], issued_ms=self._now[rank])
            self._open[rank, step.key] = place, met
        elif step.kind == "wait":
            found = [self._open.pop((rank, key)) for key in step.key]
            for place, _ in found:
                mine = self.ops[rank][place]
                self.ops[rank][place] = replace(mine, waited_ms=self._now[rank], flags=mine.flags | WAITED)
            return found
        elif step.kind == "phase":
            self._open[rank, step.key] = len(self.ops[rank]), ()
            self.ops[rank].append(replace(step.op, entered_ms=self._now[rank]))
        elif step.kind == "end":
            place, _ = self._open.pop((rank, step.key))
            self.ops[rank][place] = replace(self.ops[rank][place], completed_ms=self._now[rank])
        return None

    def _enter(self, rank: int, op: FakeOp) -> tuple[int, tuple[Any, ...]]:
        is_pair = op.op in ("send", "recv")
        self._seqs[rank, op.group, is_pair] += 1
        self.ops[rank].append(replace(op, seq=self._seqs[rank, op.group, is_pair], entered_ms=self._now[rank]))
        met: tuple[Any, ...] = (op.group, self._seqs[rank, op.group, is_pair])
        if is_pair:
            route = (rank, op.peer) if op.op == "send" else (op.peer, rank)
            self._turns[op.op, route, op.tag] += 1
            met = ("pair", route, op.tag, self._turns[op.op, route, op.tag])
        self._come[met][rank] = self._now[rank]
        return len(self.ops[rank]) - 1, met

    def _end(self, rank: int, step: Step, waited: list[tuple[int, tuple[Any, ...]]]) -> bool:
        """Whether all that it waits for is there; then it goes on."""
        ends = [self._ended_ms(rank, self.ops[rank][place], met) for place, met in waited]
        if not all(ends):
            return False
        self._now[rank] = max([self._now[rank], *ends])
        for place, _ in waited:
            self.ops[rank][place] = replace(self.ops[rank][place], completed_ms=self._now[rank])
        return True

    def _ended_ms(self, rank: int, op: FakeOp, met: tuple[Any, ...]) -> float:
        come = self._come[met]
        if op.op == "send":  # buffered
            return come[rank] + _COMM_MS
        needed = [op.peer, rank] if op.op in ("recv", "broadcast") else self._groups[op.group]
        return max(come[each] for each in needed) + _COMM_MS if all(each in come for each in needed) else 0.0


Maker = Callable[[random.Random, int, int], tuple[list[Program], dict[str, list[int]]]]


def phase(name: str, op: str = "phase", **facts: Any) -> Step:
    return Step("phase", op=FakeOp(op, 0, 0, phase=name, group="", **facts), key=name)


def ddp(rng: random.Random, ranks: int, steps: int) -> tuple[list[Program], dict[str, list[int]]]:
    """Forward, backward with buckets in flight, step; a barrier and rank 0's checkpoint at the end of an epoch."""

    def program(rank: int) -> Program:
        for step in range(steps):
            yield compute(rng.expovariate(1 / 3))
            yield phase("forward", "ddp_forward", size_bytes=2000, line=11)
            yield call("broadcast", peer=0, phase="forward", line=11)
            yield compute(rng.expovariate(1 / 4))
            yield Step("end", key="forward")
            yield phase("backward", line=12)
            for bucket in range(2):
                yield compute(rng.expovariate(1 / 3))
                yield issue(("bucket", bucket), "all_reduce", BUCKET, reduce="SUM", phase="backward", line=12)
            yield wait(("bucket", 0), ("bucket", 1))
            yield Step("end", key="backward")
            if step % 5 == 4:
                if rank == 0:
                    yield compute(rng.uniform(5, 60))
                yield call("barrier", line=20)

    return [program(rank) for rank in range(ranks)], {}


def fsdp(rng: random.Random, ranks: int, steps: int) -> tuple[list[Program], dict[str, list[int]]]:
    """Parameters are gathered one layer ahead, gradients are scattered behind."""

    def program(rank: int) -> Program:
        for _ in range(steps):
            yield issue(("gather", 0), "all_gather", line=11)
            for layer in range(3):
                if layer < 2:
                    yield issue(("gather", layer + 1), "all_gather", line=11)
                yield wait(("gather", layer))
                yield compute(rng.expovariate(1 / 2))
            for layer in range(3):
                yield compute(rng.expovariate(1 / 3))
                yield issue(("scatter", layer), "reduce_scatter", reduce="AVG", line=12)
            yield wait(*(("scatter", layer) for layer in range(3)))
            yield call("all_reduce", reduce="SUM", shape=(1,), line=14)

    return [program(rank) for rank in range(ranks)], {}


def pipeline(rng: random.Random, ranks: int, steps: int) -> tuple[list[Program], dict[str, list[int]]]:
    """Microbatches go down the stages, gradients up; the first and the last stage also have a group."""

    def program(rank: int) -> Program:
        for _ in range(steps):
            for micro in range(3):
                if rank:
                    yield call("recv", peer=rank - 1, tag=micro, line=11)
                yield compute(rng.expovariate(1 / 3))
                if rank < ranks - 1:
                    yield issue(("down", micro), "send", peer=rank + 1, tag=micro, line=12)
            for micro in range(3):
                if rank < ranks - 1:
                    yield call("recv", peer=rank + 1, tag=10 + micro, line=14)
                yield compute(rng.expovariate(1 / 5))
                if rank:
                    yield call("send", peer=rank - 1, tag=10 + micro, line=15)
            if rank < ranks - 1:
                yield wait(*(("down", micro) for micro in range(3)))
            if rank in (0, ranks - 1):
                yield call("all_reduce", group="tied", reduce="SUM", line=17)

    return [program(rank) for rank in range(ranks)], {"tied": [0, ranks - 1]}


def many_async(rng: random.Random, ranks: int, steps: int) -> tuple[list[Program], dict[str, list[int]]]:
    """Handles are kept in a list, and waited for some steps later; rows and columns of a mesh have groups of their
    own."""
    rows = {f"row {n}": list(range(n * ranks // 2, (n + 1) * ranks // 2)) for n in range(2)}

    def program(rank: int) -> Program:
        row = f"row {rank * 2 // ranks}"
        for step in range(steps):
            yield compute(rng.expovariate(1 / 3))
            yield issue(step, "all_reduce", reduce="SUM", line=11)
            yield call("all_to_all", group=row, line=12)
            if step >= 3:
                yield wait(step - 3)
        yield wait(*range(max(steps - 3, 0), steps))

    return [program(rank) for rank in range(ranks)], rows


def joined(rng: random.Random, ranks: int, steps: int) -> tuple[list[Program], dict[str, list[int]]]:
    """Ranks with fewer batches shadow the collectives of the others, as DDP's join() does."""
    batches = [steps - rank % 3 for rank in range(ranks)]

    def program(rank: int) -> Program:
        for step in range(max(batches)):
            yield compute(rng.expovariate(1 / 3))
            yield call("all_reduce", reduce="SUM", shape=(1,), line=9)
            if step < batches[rank]:
                yield phase("forward", "ddp_forward", size_bytes=0, line=11)
                yield compute(rng.expovariate(1 / 4))
                yield Step("end", key="forward")
            yield issue("bucket", "all_reduce", reduce="SUM", line=12 if step < batches[rank] else 13)
            yield wait("bucket")
        yield call("broadcast", peer=0, line=16)

    return [program(rank) for rank in range(ranks)], {}


HEALTHY: dict[str, Maker] = {
    "DDP": ddp,
    "FSDP2": fsdp,
    "pipeline": pipeline,
    "async": many_async,
    "uneven but joined": joined,
}
