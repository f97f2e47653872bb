"""A large simulated run: its program, its faults, and when each rank entered and left each op."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MOST_STAGES = 8
START_NS = 5_000_000_000_000_000  # on the launcher's clock
MICROSECOND = 1000
STRAGGLER_NS = 3_000_000

SOURCE = '''\
"""The program whose rings these are."""

import torch
import torch.distributed as dist


def exchange(activation, peer, sends_first):
    if sends_first:
        dist.send(activation, peer)
        dist.recv(activation, peer)
    else:
        dist.recv(activation, peer)
        dist.send(activation, peer)


def step(model, stage, peer, sends_first):
    dist.all_reduce(model.gradients)
    head = dist.all_reduce(model.head, async_op=True)
    dist.all_gather_into_tensor(model.whole, model.shard, group=stage)
    dist.reduce_scatter_tensor(model.shard, model.whole, group=stage)
    head.wait()
    exchange(model.activation, peer, sends_first)
    tail = dist.all_reduce(model.tail, async_op=True)
    dist.broadcast(model.scale, src=0)
    tail.wait()
    dist.all_reduce(model.worst, op=dist.ReduceOp.MAX)
    dist.barrier()


def evaluate(scores, everyone):
    if scores is None:
        return
    dist.all_gather_into_tensor(everyone, scores)


def train(model, steps, stages, peer, sends_first):
    dist.init_process_group("gloo")
    groups = [dist.new_group(ranks) for ranks in stages]
    for _ in range(steps):
        step(model, groups[model.stage], peer, sends_first)
    evaluate(model.scores, model.everyone)
'''
FILE = "train_big.py"


@dataclass(frozen=True)
class Line:
    """One op of the program: the fields of its record, and its call in SOURCE."""

    op: str
    call: str
    function: str
    group: str = "world"  # or stage
    shape: tuple[int, ...] = ()
    dtype: str = "float32"
    reduce: str = ""
    root: int = -1
    is_async: bool = False
    wait_after: int = 0  # an async op: waited for after so many ops

    @property
    def is_point_to_point(self) -> bool:
        return self.op in ("send", "recv")

    @property
    def size_bytes(self) -> int:
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize if self.shape else 0


INIT = Line("init", "dist.init_process_group", "train")
NEW_GROUP = Line("new_group", "dist.new_group", "train")
STEP = (
    Line("all_reduce", "dist.all_reduce(model.gradients)", "step", shape=(1 << 20,), reduce="SUM"),
    Line("all_reduce", "head = ", "step", shape=(512, 64), reduce="SUM", is_async=True, wait_after=2),
    Line("all_gather", "dist.all_gather_into_tensor(model.whole", "step", "stage", (4096,)),
    Line("reduce_scatter", "dist.reduce_scatter_tensor", "step", "stage", (4096,), reduce="SUM"),
    Line("send", "dist.send", "exchange", shape=(32, 128)),
    Line("recv", "dist.recv", "exchange", shape=(32, 128)),
    Line("all_reduce", "tail = ", "step", shape=(256,), reduce="SUM", is_async=True, wait_after=1),
    Line("broadcast", "dist.broadcast", "step", shape=(1,), root=0),
    Line("all_reduce", "dist.all_reduce(model.worst", "step", shape=(1,), reduce="MAX"),
    Line("barrier", "dist.barrier()", "step"),
)
LAST = Line("all_gather", "dist.all_gather_into_tensor(everyone", "evaluate", shape=(10,))
CALLERS = {"exchange": "exchange(model.activation", "step": "step(model, groups", "evaluate": "evaluate(model.scores"}

# Faults; the first two end the run, so a run has one of them.
FAULTS = ("missing-rank", "rank-killed", "straggler", "mismatched-dtype", "mismatched-reduce-op", "buffer-overwritten")
ENDINGS = FAULTS[:2]


@dataclass(frozen=True)
class Planted:
    kind: str
    rank: int


@dataclass(frozen=True)
class Shape:
    """The size of a run, and its faults."""

    ranks: int
    ops: int  # of each rank
    planted: tuple[Planted, ...] = ()

    def culprit(self, kind: str) -> int:
        return next((each.rank for each in self.planted if each.kind == kind), -1)

    @property
    def stages(self) -> int:
        return min(MOST_STAGES, self.ranks // 2)

    @property
    def lines(self) -> list[Line]:
        """The ops of an even rank, in order."""
        steps = max(1, (self.ops - 2 - self.stages) // len(STEP))
        return [INIT, *[NEW_GROUP] * self.stages, *STEP * steps, LAST]

    @property
    def middle(self) -> int:
        """The first op of a step in the middle."""
        first = 1 + self.stages
        return first + (len(self.lines) - first) // len(STEP) // 2 * len(STEP)

    @property
    def last_step(self) -> int:
        return len(self.lines) - 1 - len(STEP)


def shape(ranks: int, ops: int, faults: Sequence[str]) -> Shape:
    """A run with each fault on another rank."""
    if ranks < 16 or ranks % 2:
        raise ValueError(f"{ranks} ranks: an even number from 16 on is needed")
    places = (0.66, 0.75, 0.33, 0.5, 0.2, 0.14)
    planted = [Planted(kind, int(ranks * place)) for kind, place in zip(FAULTS, places, strict=True) if kind in faults]
    return Shape(ranks, ops, tuple(planted))


@dataclass(frozen=True)
class Times:
    """When each rank entered and left each op, in ns."""

    entered: NDArray[np.int64]
    waited: NDArray[np.int64]
    completed: NDArray[np.int64]


def simulate(run: Shape) -> Times:
    """When each rank entered and left each op: a collective ends when its last rank has entered."""
    lines, chance = run.lines, np.random.default_rng(run.ranks)
    entered, waited, completed = (np.zeros((run.ranks, len(lines)), np.int64) for _ in range(3))
    now = np.full(run.ranks, START_NS, np.int64)
    stage_starts = _stage_starts(run)
    is_even = np.arange(run.ranks) % 2 == 0
    pending: dict[int, list[int]] = {}
    for at, line in enumerate(lines):
        now = now + chance.integers(20, 120, run.ranks) * MICROSECOND
        if line is STEP[0] and (late := run.culprit("straggler")) >= 0:
            now[late] += STRAGGLER_NS
        entered[:, at] = now
        if line.is_point_to_point:
            other = now.reshape(-1, 2)[:, ::-1].ravel()  # when the neighbour entered its part
            receives = is_even == (line.op == "recv")
            done = np.where(receives, np.maximum(now, other), now) + 30 * MICROSECOND
        elif line.group == "stage":
            done = np.repeat(np.maximum.reduceat(now, stage_starts), np.diff([*stage_starts, run.ranks]))
            done = done + 80 * MICROSECOND
        else:
            done = np.full(run.ranks, now.max() + 150 * MICROSECOND)
        completed[:, at] = done + chance.integers(1, 10, run.ranks) * MICROSECOND
        if line.is_async:
            now = now + 5 * MICROSECOND
            pending.setdefault(at + line.wait_after, []).append(at)
        else:
            now = waited[:, at] = completed[:, at]
            waited[:, at] = entered[:, at] + MICROSECOND
        for issued in pending.pop(at, []):
            now = waited[:, issued] = now + MICROSECOND
            now = completed[:, issued] = np.maximum(now, completed[:, issued]) + MICROSECOND
    return Times(entered, waited, completed)


def _stage_starts(run: Shape) -> NDArray[np.int64]:
    return np.array([part[0] for part in np.array_split(np.arange(run.ranks), run.stages)])
