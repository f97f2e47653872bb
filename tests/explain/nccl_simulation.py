"""Simulates the GPUs of many nccl ranks, and writes the Flight Recorder dumps that they leave.

The dumps follow torch's sources (FlightRecorderDetail.hpp for the format, ProcessGroupNCCL.cpp for what each op
records), not our reader: calls are counted per group, both counters are in every entry, ops of a batch have no state of
their own, a scatter has its inputs among the outputs.
"""

import json
import math
import os
import pickle
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

START_NS = 1_794_000_000_000_000_000
FILE = "/home/someone/train.py"
TIMEOUT_MS = 600_000
SIZES = {"Float": 4, "BFloat16": 2, "Long": 8, "Int": 4, "Half": 2}


@dataclass(frozen=True)
class Call:
    """One op that a rank asks for. `inputs` and `outputs` are shapes; `peer` is a rank of the group."""

    name: str
    group: str
    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    line: int
    dtype: str = "Float"
    peer: int = -1

    @property
    def is_p2p(self) -> bool:
        return self.peer >= 0

    def fits(self, other: "Call") -> bool:
        """Whether nccl completes the two as one collective: it sees types by their bytes."""
        mine, theirs = ((each.name, _total(each.inputs) * SIZES[each.dtype]) for each in (self, other))
        return mine == theirs or (self.name, other.name) == ("all_to_all", "all_to_all")


@dataclass(frozen=True)
class Batch:
    """Several ops that nccl begins together."""

    calls: tuple[Call, ...]
    end: str = "coalesced"

    @property
    def group(self) -> str:
        return self.calls[0].group


@dataclass(frozen=True)
class Compute:
    ms: float


@dataclass(frozen=True)
class Sync:
    """The rank waits until its GPU has done everything."""


@dataclass(frozen=True)
class Stuck:
    """The rank never gets past here: it is busy, has died, or its GPU is."""

    of: str = "host"  # host, device


Step = Call | Batch | Compute | Sync | Stuck


@dataclass
class Issued:
    step: Call | Batch
    created_ms: list[float]
    collective: int
    p2p: int
    place: int  # n-th collective of its group
    ended_ms: float = 0
    began_ms: float = 0


@dataclass
class Job:
    groups: dict[str, tuple[int, ...]]
    descriptions: dict[str, str]
    programs: list[list[Step]]
    kinds: tuple[str, ...] = ()  # that are right; none: the job is correct
    guilty: tuple[int, ...] = ()
    lines: tuple[int, ...] = ()
    dead: tuple[int, ...] = ()  # leave no dump


def _total(shapes: tuple[tuple[int, ...], ...]) -> int:
    return sum(map(math.prod, shapes))


class Device:
    """Runs the programs of all ranks: hosts run ahead of their GPUs, which do what they are asked one after another."""

    def __init__(self, job: Job, chance: random.Random) -> None:
        self.job, self.chance = job, chance
        world = len(job.programs)
        self.issued: list[list[Issued]] = [[] for _ in range(world)]
        self.next_step, self.head = [0] * world, [0] * world
        self.now_ms = [chance.uniform(0, 3) for _ in range(world)]
        self.free_ms = [0.0] * world
        self.counts: list[dict[str, list[int]]] = [defaultdict(lambda: [0, 0, 0]) for _ in range(world)]

    def run(self) -> "Device":
        ranks = range(len(self.issued))
        while sum(self._host(rank) for rank in ranks) or self._devices():
            pass
        return self

    def _host(self, rank: int) -> bool:
        moved = False
        program = self.job.programs[rank]
        while self.next_step[rank] < len(program):
            step = program[self.next_step[rank]]
            if isinstance(step, Stuck):
                if step.of == "host":
                    break
                self.issued[rank].append(Issued(Call("stuck", "", (), (), 0), [self.now_ms[rank]], 0, 0, 0))
            elif isinstance(step, Compute):
                self.now_ms[rank] += step.ms * self.chance.uniform(0.9, 1.1)
            elif isinstance(step, Sync):
                if self.head[rank] < len(self.issued[rank]):
                    break
                self.now_ms[rank] = max(self.now_ms[rank], self.free_ms[rank])
            else:
                self.issued[rank].append(self._issue(rank, step))
            self.next_step[rank] += 1
            moved = True
        return moved

    def _issue(self, rank: int, step: Call | Batch) -> Issued:
        count = self.counts[rank][step.group]
        calls = step.calls if isinstance(step, Batch) else (step,)
        is_p2p = calls[0].is_p2p
        count[is_p2p] += 1
        count[2] += not is_p2p
        created = []
        for _ in calls:
            self.now_ms[rank] += self.chance.uniform(0.02, 0.06)
            created.append(self.now_ms[rank])
        if isinstance(step, Batch):
            created.append(self.now_ms[rank] + 0.01)
        return Issued(step, created, count[0], count[1], count[2])

    def _at_head(self, rank: int) -> Issued | None:
        mine = self.issued[rank]
        return mine[self.head[rank]] if self.head[rank] < len(mine) else None

    def _devices(self) -> bool:
        moved = False
        for rank in range(len(self.issued)):
            together = self._complete(rank)
            if together:
                began = [max(self.free_ms[each], self._at_head(each).created_ms[-1]) for each in together]  # type: ignore[union-attr]
                end_ms = max(began) + self.chance.uniform(0.1, 0.4)
                for each, began_ms in zip(together, began, strict=True):
                    op = self._at_head(each)
                    assert op
                    op.began_ms, op.ended_ms, self.free_ms[each] = began_ms, end_ms, end_ms
                    self.head[each] += 1
                moved = True
        return moved

    def _complete(self, rank: int) -> list[int]:
        """The ranks whose ops at the head make one call that can complete."""
        op = self._at_head(rank)
        if op is None or (isinstance(op.step, Call) and op.step.name == "stuck"):
            return []
        calls = op.step.calls if isinstance(op.step, Batch) else (op.step,)
        if calls[0].is_p2p:
            return self._exchange(rank)
        members = list(self.job.groups[op.step.group])
        for other in members:
            theirs = self._at_head(other)
            if theirs is None or theirs.step.group != op.step.group or theirs.place != op.place:
                return []
            its = theirs.step.calls if isinstance(theirs.step, Batch) else (theirs.step,)
            if len(its) != len(calls) or not all(one.fits(two) for one, two in zip(calls, its, strict=True)):
                return []
        return members

    def _exchange(self, rank: int) -> list[int]:
        """All ranks that are connected with this one by sends and receives, if every one has its partner."""
        found, new = {rank}, [rank]
        while new:
            mine = new.pop()
            for other, want in self._wants(mine):
                if want not in [(each[0], each[1]) for each in self._offers(other)]:
                    return []
                if other not in found:
                    found.add(other)
                    new.append(other)
        return sorted(found)

    def _calls(self, rank: int) -> tuple[Call, ...]:
        op = self._at_head(rank)
        if op is None:
            return ()
        return op.step.calls if isinstance(op.step, Batch) else (op.step,)

    def _wants(self, rank: int) -> Iterator[tuple[int, tuple[str, Any]]]:
        for call in self._calls(rank):
            members = self.job.groups[call.group]
            other = "recv" if call.name == "send" else "send"
            yield members[call.peer], (other, (call.group, members.index(rank), call.inputs))

    def _offers(self, rank: int) -> Iterator[tuple[str, Any]]:
        for call in self._calls(rank):
            if call.is_p2p:
                yield call.name, (call.group, call.peer, call.inputs)


@dataclass(frozen=True)
class Style:
    """How the dumps are written: version, form, names, what is absent."""

    version: str = "2.10"
    is_json: bool = False
    prefix: str = "nccl_trace_rank_"
    suffix: str = ""
    has_frames: bool = True
    has_timing: bool = False
    has_config: bool = True
    buffer: int = 2000
    is_cut: tuple[int, ...] = ()
    backend: str = "nccl"
    is_copied: bool = False  # the times of the files are later


def write(folder: Path, job: Job, style: Style, chance: random.Random) -> None:
    device = Device(job, chance).run()
    opened = [op.created_ms[0] for mine in device.issued for op in mine if not op.ended_ms]
    ends = max(device.now_ms + device.free_ms)
    at_ms = max(min(opened) + TIMEOUT_MS if opened else 0, ends) + 200
    for rank in range(len(job.programs)):
        if rank in job.dead:
            continue
        content = _content(job, device, rank, style, chance, at_ms)
        path = folder / f"{style.prefix}{rank}{style.suffix}"
        data = json.dumps(content).encode() if style.is_json else pickle.dumps(content, protocol=2)
        path.write_bytes(data[: len(data) * 2 // 3] if rank in style.is_cut else data)
        at_ns = START_NS + int((at_ms + chance.uniform(0, 2000) + (9e7 if style.is_copied else 0)) * 1e6)
        os.utime(path, ns=(at_ns, at_ns))


def _content(job: Job, device: Device, rank: int, style: Style, chance: random.Random, at_ms: float) -> dict[str, Any]:
    numbered = list(enumerate(_entries(job, device, rank, style, chance, at_ms)))[-style.buffer :]
    entries = [{"record_id": number, **entry, "op_id": number + 1} for number, entry in numbered]
    minor = int(style.version.split(".")[1])
    content: dict[str, Any] = {"version": style.version, "entries": entries}
    if style.has_config:
        content["pg_config"] = {
            name: {"name": name, "desc": job.descriptions[name], "ranks": f"[{', '.join(map(str, ranks))}]"}
            for name, ranks in job.groups.items()
            if rank in ranks
        }
    if minor >= 3:
        content["pg_status"] = {"0": {"last_enqueued_collective": 1}}
    if minor >= 7:
        content["comm_lib_version"] = "2.27.5"
    if minor >= 4:
        content["nccl_comm_state"] = {"0x7f": {"rank": str(rank)}}
    return content


def _entries(
    job: Job, device: Device, rank: int, style: Style, chance: random.Random, at_ms: float
) -> Iterator[dict[str, Any]]:
    frames: dict[int, list[dict[str, Any]]] = {}
    tick = chance.uniform(0, 100)
    for op in device.issued[rank]:
        if isinstance(op.step, Call) and op.step.name == "stuck":
            continue
        calls = op.step.calls if isinstance(op.step, Batch) else (op.step,)
        for call, created_ms in zip(calls, op.created_ms, strict=False):
            state = _no_state(style) if isinstance(op.step, Batch) else _state(op, style, tick, at_ms)
            yield _entry(job, rank, op, call, created_ms, style, frames) | state
        if isinstance(op.step, Batch):
            end = Call(op.step.end, op.step.group, (), (), calls[-1].line, calls[-1].dtype, calls[0].peer)
            yield _entry(job, rank, op, end, op.created_ms[-1], style, frames) | _state(op, style, tick, at_ms)


def _entry(
    job: Job, rank: int, op: Issued, call: Call, created_ms: float, style: Style, frames: dict[int, Any]
) -> dict[str, Any]:
    minor = int(style.version.split(".")[1])
    name = f"{style.backend}:{call.name}"
    if call.name in ("send", "recv"):
        me = job.groups[call.group].index(rank)
        name += f" {me}{'->' if call.name == 'send' else '<-'}{call.peer}"
    entry = {
        "pg_id": list(job.groups).index(call.group),
        "process_group": (call.group, job.descriptions[call.group]),
        "collective_seq_id": op.collective,
        "p2p_seq_id": op.p2p,
        "profiling_name": name,
        "time_created_ns": START_NS + int(created_ms * 1e6),
        "input_sizes": [list(shape) for shape in call.inputs],
        "input_dtypes": [_dtype(shape, call) for shape in call.inputs],
        "output_sizes": [list(shape) for shape in call.outputs],
        "output_dtypes": [_dtype(shape, call) for shape in call.outputs],
        "timeout_ms": TIMEOUT_MS,
        "is_p2p": call.is_p2p,
    }
    if style.has_frames and not style.is_json:
        entry["frames"] = frames.setdefault(call.line, _frames(call))
    if minor >= 7:
        entry |= {"thread_name": "python", "thread_id": "139641"}
    return entry


def _dtype(shape: tuple[int, ...], call: Call) -> str:
    """Where a rank has no tensor, nccl's code passes an undefined one."""
    return "Undefined" if shape == (0,) else call.dtype


def _frames(call: Call) -> list[dict[str, Any]]:
    torch = "/usr/lib/python3.12/site-packages/torch/distributed/"
    return [
        {"name": call.name, "filename": f"{torch}distributed_c10d.py", "line": 2806},
        {"name": "wrapper", "filename": f"{torch}c10d_logger.py", "line": 81},
        {"name": "step", "filename": FILE, "line": call.line},
        {"name": "<module>", "filename": FILE, "line": 300},
    ]


def _no_state(style: Style) -> dict[str, Any]:
    never = 0 if style.is_json else None
    return {
        "state": "scheduled",
        "time_discovered_started_ns": never,
        "time_discovered_completed_ns": never,
        "retired": False,
    }


def _state(op: Issued, style: Style, tick: float, at_ms: float) -> dict[str, Any]:
    """A thread looks every 100 ms; without timing, there is no event for the begin of an op."""
    if not op.ended_ms:
        started = style.has_timing and op.began_ms
        return _no_state(style) | ({"state": "started"} if started else {})
    seen_ms = min(op.ended_ms + 100 - (op.ended_ms - tick) % 100, at_ms)
    completed_ns = START_NS + int(seen_ms * 1e6)
    found = {**_no_state(style), "state": "completed", "time_discovered_completed_ns": completed_ns, "retired": True}
    if style.has_timing:
        found |= {"time_discovered_started_ns": completed_ns, "duration_ms": op.ended_ms - op.began_ms}
    return found
