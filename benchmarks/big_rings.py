"""The rings of a big run that never ran, with planted faults: big_rings.py FOLDER RANKS OPS [--faults …]

Written straight in the recorder's format (docs/ring.md): a training on hosts of eight ranks whose clocks differ, with
collectives of the world and of eight stages, async ops that are waited for later, and sends and receives between
neighbours. Ten million records take a few seconds, since one rank is much like another.
"""

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollcall.launch.hosts import Host
from rollcall.launch.plan import Plan, Program, Reach
from rollcall.launch.runs import RunFolder
from rollcall.record import layout
from rollcall.record.ring import Ring

NUMPY = {"Q": "u8", "I": "u4", "H": "u2", "i": "i4"}
RECORD = np.dtype([(name, f"<{NUMPY[code]}") for name, code in layout.FIELDS.items()])
RANKS_PER_HOST = 8
MOST_STAGES = 8
START_NS = 1_800_000_000_000_000_000
MICROSECOND = 1000
CLOCKS_NS = 20_000_000  # hosts' clocks are off by at most so much
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
    """One op of the program: what its record has, and the call that it stands for in SOURCE."""

    op: str
    call: str
    function: str
    group: str = "world"  # or stage
    shape: tuple[int, ...] = ()
    dtype: str = "float32"
    reduce: str = ""
    root: int = -1
    is_async: bool = False
    wait_after: int = 0  # an async op: so many ops later, before the next begins

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

# What can be planted; the first two are endings, of which a run has one.
FAULTS = ("missing-rank", "rank-killed", "straggler", "mismatched-dtype", "mismatched-reduce-op", "buffer-overwritten")
ENDINGS = FAULTS[:2]


@dataclass(frozen=True)
class Planted:
    kind: str
    rank: int


@dataclass(frozen=True)
class Shape:
    """How big a run, and what is wrong with it."""

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
    """Each fault on a rank of its own."""
    if ranks < 16 or ranks % 2:
        raise ValueError(f"{ranks} ranks: an even number from 16 on is needed")
    places = (0.66, 0.75, 0.33, 0.5, 0.2, 0.14)
    planted = [Planted(kind, int(ranks * place)) for kind, place in zip(FAULTS, places, strict=True) if kind in faults]
    return Shape(ranks, ops, tuple(planted))


@dataclass(frozen=True)
class Times:
    """Of each op on each rank, in ns."""

    entered: NDArray[np.int64]
    waited: NDArray[np.int64]
    completed: NDArray[np.int64]


def simulate(run: Shape) -> Times:
    """When each rank came to each op and left it: a collective ends when its last rank has come."""
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
            other = now.reshape(-1, 2)[:, ::-1].ravel()  # the neighbour came to its half then
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


def write(folder: Path, run: Shape) -> Path:
    """The run's folder, as a real run leaves it."""
    source = folder / FILE
    source.write_text(SOURCE)
    times = simulate(run)
    hosts = [f"node-{number:04}" for number in range(-(-run.ranks // RANKS_PER_HOST))]
    offsets_ns = np.random.default_rng(1).integers(-CLOCKS_NS, CLOCKS_NS, len(hosts))
    path = _write_facts(folder, run, hosts, offsets_ns)
    rings = path / "rings" / "attempt-0"
    rings.mkdir(parents=True)
    stages = np.array_split(np.arange(run.ranks), run.stages)
    for stage in stages:
        names = _Names(source, run, stage.tolist())
        even, odd = (names.records(run, is_even=each) for each in (True, False))
        for rank in stage.tolist():
            records = _of_rank(run, rank, even if rank % 2 == 0 else odd, times, names)
            for field in ("entered_ns", "issued_ns", "completed_ns", "waited_ns"):
                here = records[field]
                here[here > 0] += offsets_ns[rank // RANKS_PER_HOST].astype("u8")
            names.write(rings / f"rank-{rank}.ring", run, rank, hosts[rank // RANKS_PER_HOST], records)
    return path


class _Names:
    """What the ranks of one stage name by number; the recorder's own ring writes it down."""

    def __init__(self, source: Path, run: Shape, stage: list[int]) -> None:
        self._source, self._text = source, SOURCE.splitlines()
        world = [0, run.ranks - 1]  # those that follow each other stand there as the first and the last
        with tempfile.TemporaryDirectory(dir=source.parent) as folder:
            path = Path(folder, "names.ring")
            ring = Ring(path, rank=0, world_size=run.ranks, attempt=0, host="")
            groups = {
                "init": ("world", world),
                "world": ("0", world),
                "stage": (str(1 + stage[0]), [stage[0], stage[-1]]),
            }
            self._groups = {
                key: ring.name("group", name, {"name": name, "ranks": [span]}) for key, (name, span) in groups.items()
            }
            self._lines = {line: self._name(ring, line) for line in [INIT, NEW_GROUP, *STEP, LAST]}
            integers = replace(STEP[0], dtype="int32")
            self.odd_signature = self._name(ring, integers)[1]
            told = {"error": "RuntimeError", "text": "Connection closed by peer"}
            self.error = ring.name("signature", "RuntimeError", told)
            self._head = path.read_bytes()[: layout.RECORDS_AT].rstrip(b"\0")

    def _name(self, ring: Ring, line: Line) -> tuple[int, int]:
        """The numbers of its site and its signature."""
        places = [self._place(line.call, line.function)]
        function = line.function
        while function in CALLERS:
            call, function = CALLERS[function], {"exchange": "step"}.get(function, "train")
            places.append(self._place(call, function))
        told: dict[str, Any] = {
            "shapes": [list(line.shape)] if line.shape else [],
            "dtypes": [line.dtype] if line.shape else [],
            "device": "cpu" if line.shape else "",
            "splits": [],
        }
        return ring.name("site", tuple(places), places), ring.name("signature", str(told), told)

    def _place(self, call: str, function: str) -> tuple[str, int, str]:
        number = next(n for n, text in enumerate(self._text, 1) if call in text)
        return str(self._source), number, function

    def site(self, line: Line) -> int:
        return self._lines[line][0]

    def records(self, run: Shape, is_even: bool) -> NDArray[Any]:
        """All that the ranks of one parity have alike."""
        lines = run.lines
        records = np.zeros(len(lines), RECORD)
        records["number"] = np.arange(1, len(lines) + 1)
        for sort in dict.fromkeys(lines):
            here = np.array([line == sort for line in lines])
            line = sort if is_even or not sort.is_point_to_point else self._other_half(sort)
            records["op"][here] = layout.OP[line.op]
            records["flags"][here] = (layout.ASYNC if line.is_async or line.is_point_to_point else 0) | layout.WAITED
            records["group"][here] = self._groups["init" if line in (INIT, NEW_GROUP) else line.group]
            records["site"][here], records["signature"][here] = self._lines[line]
            records["peer"][here] = line.root
            records["reduce"][here] = layout.REDUCE_OPS.index(line.reduce)
            records["size_bytes"][here] = line.size_bytes
        is_p2p = np.isin(records["op"], layout.POINT_TO_POINT)
        for group in np.unique(records["group"]):
            for here in (is_p2p, ~is_p2p):
                mine = here & (records["group"] == group)
                records["seq"][mine] = np.arange(1, mine.sum() + 1)
        return records

    def _other_half(self, line: Line) -> Line:
        return next(each for each in STEP if each.is_point_to_point and each.op != line.op)

    def write(self, path: Path, run: Shape, rank: int, host: str, records: NDArray[Any]) -> None:
        """A file with holes, as the recorder's is."""
        head = bytearray(self._head)
        fields = list(layout.HEADER.unpack_from(head))
        fields[3:7] = [rank, run.ranks, 0, 1000 + rank]
        room, fields[9] = fields[8], host.encode()
        layout.HEADER.pack_into(head, 0, *fields)
        layout.NUMBER.pack_into(head, layout.COUNT_AT, len(records))
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        with contextlib.closing(os.fdopen(fd, "wb", buffering=0)) as file:
            file.truncate(layout.RECORDS_AT + room * layout.RECORD.size)
            file.write(head)
            file.seek(layout.RECORDS_AT)
            file.write(records.tobytes())


def _of_rank(run: Shape, rank: int, alike: NDArray[Any], times: Times, names: _Names) -> NDArray[Any]:
    """The records of one rank, its faults among them."""
    records = alike.copy()
    is_p2p = np.isin(records["op"], layout.POINT_TO_POINT)
    records["peer"][is_p2p] = rank ^ 1
    records["entered_ns"] = times.entered[rank]
    records["issued_ns"] = times.entered[rank] + 2 * MICROSECOND
    records["waited_ns"] = times.waited[rank]
    records["completed_ns"] = times.completed[rank]
    records["version_issued"] = records["version_waited"] = 1
    if rank == run.culprit("mismatched-dtype"):
        records["signature"][run.middle] = names.odd_signature
    if rank == run.culprit("mismatched-reduce-op"):
        records["reduce"][run.middle + len(STEP)] = layout.REDUCE_OPS.index("AVG")
    if rank == run.culprit("buffer-overwritten"):
        records["version_waited"][run.middle + 1] += 1
    return _end(run, rank, records, names)


def _end(run: Shape, rank: int, records: NDArray[Any], names: _Names) -> NDArray[Any]:
    """How it ended: well, waiting for the one that did not come, or because of the one that was killed."""
    last = np.zeros(1, RECORD)
    last["peer"] = -1
    if (missing := run.culprit("missing-rank")) >= 0:
        if rank != missing:
            records["completed_ns"][-1] = 0
            return records
        records = records[:-1]
    elif (killed := run.culprit("rank-killed")) >= 0:
        records = records[: run.last_step + (rank != killed)]
        if rank == killed:
            return records
        records["completed_ns"][-1] = 0
        records["flags"][-1] |= layout.FAILED
        last["op"], last["signature"], last["site"] = layout.OP["exception"], names.error, names.site(STEP[0])
    if not last["op"][0]:
        last["op"] = layout.OP["exit"]
    last["number"] = len(records) + 1
    last["entered_ns"] = max(records["entered_ns"][-1], records["completed_ns"][-1]) + 50 * MICROSECOND
    return np.concatenate([records, last])


def _write_facts(folder: Path, run: Shape, hosts: list[str], offsets_ns: NDArray[Any]) -> Path:
    """run.json, by what writes it for real runs."""
    seats = [min(RANKS_PER_HOST, run.ranks - number * RANKS_PER_HOST) for number in range(len(hosts))]
    plan = Plan(
        Program("script", FILE),
        slots=RANKS_PER_HOST,
        hosts=tuple(Host(name, slots) for name, slots in zip(hosts, seats, strict=True)),
        reach=Reach("ssh"),
        record=True,
        cwd=str(folder),
    )
    before = os.environ.get("ROLLCALL_DIR")
    os.environ["ROLLCALL_DIR"] = str(folder)
    try:
        made = RunFolder.create(plan, ["rollcall", "run", "--hosts", ",".join(hosts[:2]) + ",…", FILE])
    finally:
        os.environ.pop("ROLLCALL_DIR") if before is None else os.environ.update(ROLLCALL_DIR=before)
    ranks = range(run.ranks)
    missing, killed = run.culprit("missing-rank"), run.culprit("rank-killed")
    codes = dict.fromkeys(map(str, ranks), 0 if missing < 0 and killed < 0 else -15 if missing >= 0 else 1)
    outcome, code = ("stopped", 124) if missing >= 0 else ("failed", 137) if killed >= 0 else ("ok", 0)
    if missing >= 0:
        codes[str(missing)] = 0
    if killed >= 0:
        codes[str(killed)] = -9
    made.note_attempt(
        0,
        hosts={name: [r for r in ranks if r // RANKS_PER_HOST == n] for n, name in enumerate(hosts)},
        world_size=run.ranks,
        pids={str(rank): 1000 + rank for rank in ranks},
        exit_codes=codes,
        asked={str(rank): True for rank in ranks if rank != missing} if missing >= 0 else {},
    )
    clocks = {
        name: {"slots": slots, "clock_offset_ns": int(offset), "clock_error_ns": 50 * MICROSECOND}
        for name, slots, offset in zip(hosts, seats, offsets_ns, strict=True)
    }
    made.save(outcome=outcome, exit_code=code, seconds=60.0, hosts=clocks)
    return made.path


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", type=Path, help="where .rollcall's `runs` and the program are made")
    options.add_argument("ranks", type=int)
    options.add_argument("ops", type=int, help="of each rank")
    options.add_argument("--faults", nargs="*", choices=FAULTS, default=[], help="what to plant")
    found = options.parse_args()
    if set(ENDINGS) <= set(found.faults):
        options.error(f"a run ends in one way: {' or '.join(ENDINGS)}")
    found.folder.mkdir(parents=True, exist_ok=True)
    try:
        run = shape(found.ranks, found.ops, found.faults)
    except ValueError as error:
        options.error(str(error))
    print(write(found.folder.resolve(), run), file=sys.stdout)


if __name__ == "__main__":
    main()
