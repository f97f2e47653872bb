"""Writes the recording of a large simulated run, with faults: big_rings.py FOLDER RANKS OPS [--faults …]

Written straight in the recorder's format (docs/ring.md): a training on hosts of eight ranks whose clocks differ, with
collectives of the world and of eight stages, async ops that are waited for later, and sends and receives between
neighbours. Ten million records take a few seconds, since one rank is much like another.
"""

import argparse
import contextlib
import os
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from big_run import (
    CALLERS,
    ENDINGS,
    FAULTS,
    FILE,
    INIT,
    LAST,
    MICROSECOND,
    NEW_GROUP,
    SOURCE,
    START_NS,
    STEP,
    Line,
    Shape,
    Times,
    shape,
    simulate,
)
from rollcall.coordinator.run_folder import RunFolder
from rollcall.protocol.hosts import Host
from rollcall.protocol.plan import Plan, Program, Transport
from rollcall.record import ring_format
from rollcall.record.ring import Ring

NUMPY = {"Q": "u8", "I": "u4", "H": "u2", "i": "i4"}
RECORD = np.dtype([(name, f"<{NUMPY[code]}") for name, code in ring_format.FIELDS.items()])
RANKS_PER_HOST = 8
CLOCKS_NS = 1_000_000_000_000_000  # largest difference between the clocks of two hosts
DRIFT = 20e-6  # of their clocks, relative
CLOCK_ERROR_NS = 50 * MICROSECOND


def write(folder: Path, run: Shape) -> Path:
    """Write the run's folder, as a real run does."""
    source = folder / FILE
    source.write_text(SOURCE)
    times = simulate(run)
    hosts = [f"node-{number:04}" for number in range(-(-run.ranks // RANKS_PER_HOST))]
    clocks = _clocks(len(hosts))
    path = _write_facts(folder, run, hosts, clocks, int(times.completed.max()))
    rings = path / "rings" / "attempt-0"
    rings.mkdir(parents=True)
    stages = np.array_split(np.arange(run.ranks), run.stages)
    for stage in stages:
        names = _Names(source, run, stage.tolist())
        even, odd = (names.records(run, is_even=each) for each in (True, False))
        for rank in stage.tolist():
            records = _of_rank(run, rank, even if rank % 2 == 0 else odd, times, names)
            for field in ("entered_ns", "issued_ns", "completed_ns", "waited_ns"):
                known = records[field] > 0
                records[field][known] = clocks[rank // RANKS_PER_HOST].read(records[field][known])
            names.write(rings / f"rank-{rank}.ring", run, rank, hosts[rank // RANKS_PER_HOST], records)
    return path


@dataclass(frozen=True)
class _Clock:
    """The clock of one host."""

    offset_ns: int
    drift: float

    def read(self, at_ns: Any) -> Any:
        at_ns = np.asarray(at_ns, np.int64)
        return at_ns + self.offset_ns + ((at_ns - START_NS).astype(np.float64) * self.drift).astype(np.int64)

    def reading(self, at_ns: int) -> tuple[int, int, int]:
        """As the launcher notes it: time, offset, error."""
        return at_ns, int(self.read(at_ns)) - at_ns, CLOCK_ERROR_NS


def _clocks(count: int) -> list[_Clock]:
    chance = np.random.default_rng(1)
    offsets_ns, drifts = chance.integers(-CLOCKS_NS, CLOCKS_NS, count), chance.uniform(-DRIFT, DRIFT, count)
    return [_Clock(int(offset_ns), float(drift)) for offset_ns, drift in zip(offsets_ns, drifts, strict=True)]


class _Names:
    """Names (sites, signatures) to which the records of one stage's ranks refer by number."""

    def __init__(self, source: Path, run: Shape, stage: list[int]) -> None:
        self._source, self._text = source, SOURCE.splitlines()
        world = [0, run.ranks - 1]  # a range of ranks is stored as its first and last
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
            self._head = path.read_bytes()[: ring_format.RECORDS_AT].rstrip(b"\0")

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
        """The records that all even, or all odd, ranks have in common."""
        lines = run.lines
        records = np.zeros(len(lines), RECORD)
        records["number"] = np.arange(1, len(lines) + 1)
        for sort in dict.fromkeys(lines):
            here = np.array([line == sort for line in lines])
            line = sort if is_even or not sort.is_point_to_point else self._other_half(sort)
            records["op"][here] = ring_format.OP[line.op]
            records["flags"][here] = (
                ring_format.ASYNC if line.is_async or line.is_point_to_point else 0
            ) | ring_format.WAITED
            records["group"][here] = self._groups["init" if line in (INIT, NEW_GROUP) else line.group]
            records["site"][here], records["signature"][here] = self._lines[line]
            records["peer"][here] = line.root
            records["reduce"][here] = ring_format.REDUCE_OPS.index(line.reduce)
            records["size_bytes"][here] = line.size_bytes
        by_op = [records["op"] == op for op in ring_format.POINT_TO_POINT]  # each rank has one peer and tag
        for group in np.unique(records["group"]):
            for here in (*by_op, ~np.any(by_op, axis=0)):
                mine = here & (records["group"] == group)
                records["seq"][mine] = np.arange(1, mine.sum() + 1)
        return records

    def _other_half(self, line: Line) -> Line:
        return next(each for each in STEP if each.is_point_to_point and each.op != line.op)

    def write(self, path: Path, run: Shape, rank: int, host: str, records: NDArray[Any]) -> None:
        """A sparse file, like the recorder's."""
        head = bytearray(self._head)
        fields = list(ring_format.HEADER.unpack_from(head))
        fields[3:7] = [rank, run.ranks, 0, 1000 + rank]
        room, fields[9] = fields[8], host.encode()
        ring_format.HEADER.pack_into(head, 0, *fields)
        ring_format.NUMBER.pack_into(head, ring_format.COUNT_AT, len(records))
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        with contextlib.closing(os.fdopen(fd, "wb", buffering=0)) as file:
            file.truncate(ring_format.RECORDS_AT + room * ring_format.RECORD.size)
            file.write(head)
            file.seek(ring_format.RECORDS_AT)
            file.write(records.tobytes())


def _of_rank(run: Shape, rank: int, alike: NDArray[Any], times: Times, names: _Names) -> NDArray[Any]:
    """The records of one rank, with its faults."""
    records = alike.copy()
    is_p2p = np.isin(records["op"], ring_format.POINT_TO_POINT)
    records["peer"][is_p2p] = rank ^ 1
    records["entered_ns"] = times.entered[rank]
    records["issued_ns"] = times.entered[rank] + 2 * MICROSECOND
    records["waited_ns"] = times.waited[rank]
    records["completed_ns"] = times.completed[rank]
    records["version_issued"] = records["version_waited"] = 1
    if rank == run.culprit("mismatched-dtype"):
        records["signature"][run.middle] = names.odd_signature
    if rank == run.culprit("mismatched-reduce-op"):
        records["reduce"][run.middle + len(STEP)] = ring_format.REDUCE_OPS.index("AVG")
    if rank == run.culprit("buffer-overwritten"):
        records["version_waited"][run.middle + 1] += 1
    return _end(run, rank, records, names)


def _end(run: Shape, rank: int, records: NDArray[Any], names: _Names) -> NDArray[Any]:
    """How the rank ended: ok, waiting for a missing rank, or because another rank was killed."""
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
        records["flags"][-1] |= ring_format.FAILED
        last["op"], last["signature"], last["site"] = ring_format.OP["exception"], names.error, names.site(STEP[0])
    if not last["op"][0]:
        last["op"] = ring_format.OP["exit"]
    last["number"] = len(records) + 1
    last["entered_ns"] = max(records["entered_ns"][-1], records["completed_ns"][-1]) + 50 * MICROSECOND
    return np.concatenate([records, last])


def _write_facts(folder: Path, run: Shape, hosts: list[str], clocks: list[_Clock], end_ns: int) -> Path:
    """run.json, written by the code that writes it for real runs."""
    seats = [min(RANKS_PER_HOST, run.ranks - number * RANKS_PER_HOST) for number in range(len(hosts))]
    plan = Plan(
        Program("script", FILE),
        hosts=tuple(Host(name, slots) for name, slots in zip(hosts, seats, strict=True)),
        transport=Transport("ssh"),
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
    facts = {
        name: {"slots": slots, "clock_readings": [clock.reading(START_NS), clock.reading(end_ns)]}
        for name, slots, clock in zip(hosts, seats, clocks, strict=True)
    }
    made.save(outcome=outcome, exit_code=code, seconds=60.0, hosts=facts)
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
