"""Trainings of many nccl ranks, right ones and ones with a bug: does `rollcall explain` name it by their dumps?

.venv/bin/python -m tests.explain.nccl_jobs FIRST-SEED LAST-SEED [KIND …]

prints what it said where it was wrong, and how often it was right; KIND is `correct` or a name of BUGS.
"""

import random
import sys
import tempfile
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rollcall.errors import UsageError
from rollcall.explain.verdict import explain, to_json

from .nccl_simulation import SIZES, Batch, Call, Compute, Job, Step, Stuck, Style, Sync, write


@dataclass
class Maker:
    chance: random.Random
    world: int = 0
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    descriptions: dict[str, str] = field(default_factory=dict)

    def job(self) -> Job:
        """A correct training: steps of one of several shapes."""
        chance = self.chance
        self.world = chance.choice([4, 8, 8, 16, 24])
        self._add("0", "default_pg", range(self.world))
        body = chance.choice([self._ddp, self._fsdp, self._mesh, self._pipeline, self._moe, self._rooted])()
        steps = chance.randrange(4, 12)
        setup = self._all(self._collective("broadcast", "0", 100, 11)) if chance.random() < 0.6 else {}
        programs: list[list[Step]] = [[] for _ in range(self.world)]
        for rank in range(self.world):
            programs[rank] += setup.get(rank, [])
            for number in range(steps):
                programs[rank] += body(rank)
                if number % 2:
                    programs[rank].append(Sync())
            programs[rank] += [self._collective("all_reduce_barrier", "0", 1, 90)(rank), Sync()]
        return Job(self.groups, self.descriptions, programs)

    def _add(self, name: str, description: str, ranks: Any) -> str:
        self.groups[name], self.descriptions[name] = tuple(ranks), description
        return name

    def _all(self, call: Any) -> dict[int, list[Step]]:
        return {rank: [call(rank)] for rank in range(self.world)}

    def _collective(self, name: str, group: str, size: int, line: int, dtype: str = "Float") -> Any:
        ways = len(self.groups[group])
        small, large = ((size,),), ((size * ways,),)
        sizes = {
            "_all_gather_base": (small, large),
            "_reduce_scatter_base": (large, small),
            "all_gather": (small, small * ways),
            "all_to_all": (large, large),
        }.get(name, (small, small))
        return lambda rank: Call(name, group, *sizes, line, dtype)

    def _ddp(self) -> Any:
        sizes = [self.chance.randrange(1, 9) * 1000 for _ in range(self.chance.randrange(2, 6))]
        lines = [40 + number for number in range(len(sizes))]
        last = self.chance.choice(["all_gather", "all_reduce", "reduce", "broadcast"])
        calls = [self._collective("all_reduce", "0", size, line) for size, line in zip(sizes, lines, strict=True)]
        calls.append(self._collective(last, "0", 4, 60))
        return lambda rank: [Compute(3), *(call(rank) for call in calls)]

    def _fsdp(self) -> Any:
        layers = self.chance.randrange(2, 5)
        gathers = [self._collective("_all_gather_base", "0", 100 * (n + 1), 30 + n, "BFloat16") for n in range(layers)]
        scatters = [self._collective("_reduce_scatter_base", "0", 100 * (n + 1), 50 + n) for n in range(layers)]
        norm = self._collective("all_reduce", "0", 1, 70)
        return lambda rank: [Compute(4), *(call(rank) for call in [*gathers, *gathers, *scatters]), norm(rank)]

    def _mesh(self) -> Any:
        """Tensor parallel within rows, data parallel across them; all groups of one dimension have a name each."""
        ways = 4 if self.world > 4 else 2
        rows = [range(start, start + ways) for start in range(0, self.world, ways)]
        columns = [range(start, self.world, ways) for start in range(ways)]
        hashed = self.chance.random() < 0.5
        mine: dict[int, list[str]] = defaultdict(list)
        for number, (ranks, what) in enumerate([(r, "mesh_tp") for r in rows] + [(c, "mesh_dp") for c in columns], 1):
            name = f"{self.chance.randrange(16**12):x}" if hashed else str(number)
            self._add(name, what, ranks)
            for rank in ranks:
                mine[rank].append(name)
        coalesced = self.chance.random() < 0.5

        def body(rank: int) -> list[Step]:
            tp, dp = mine[rank]
            inner = [
                self._collective("all_reduce", tp, 512, 41)(rank),
                self._collective("all_gather", tp, 64, 42)(rank),
            ]
            outer: list[Step] = [self._collective("all_reduce", dp, 2048 + n, 50 + n)(rank) for n in range(3)]
            if coalesced:
                outer = [Batch(tuple(outer))]  # type: ignore[arg-type]
            return [Compute(2), *inner, Compute(1), *inner, *outer]

        return body

    def _pipeline(self) -> Any:
        single = self.chance.random() < 0.5
        micro = self.chance.randrange(2, 4)

        def one(rank: int, name: str, peer: int, line: int) -> Call:
            return Call(name, "0", ((8, 64),), ((8, 64),), line, "BFloat16", peer)

        def body(rank: int) -> list[Step]:
            steps: list[Step] = []
            for _ in range(micro):
                if rank:
                    steps.append(one(rank, "recv", rank - 1, 31))
                steps.append(Compute(1))
                if rank < self.world - 1:
                    steps.append(one(rank, "send", rank + 1, 33))
            for _ in range(micro):
                if rank < self.world - 1:
                    steps.append(one(rank, "recv", rank + 1, 36))
                if rank:
                    steps.append(one(rank, "send", rank - 1, 38))
            ring = Batch(
                (
                    one(rank, "send", (rank + 1) % self.world, 45),
                    one(rank, "recv", (rank - 1) % self.world, 46),
                )
            )
            tail: list[Step] = [] if single else [ring]
            wrapped = [Batch((each,)) if not single and isinstance(each, Call) else each for each in steps]
            return [*wrapped, *tail, self._collective("all_reduce", "0", 1, 50)(rank)]

        return body

    def _moe(self) -> Any:
        uneven = self.chance.random() < 0.7
        seeds = self.chance.randrange(1 << 30)

        def exchange(rank: int, line: int) -> Call:
            mine = random.Random(seeds + rank)
            sizes = (((mine.randrange(10, 90), 64),), ((mine.randrange(10, 90), 64),)) if uneven else (((64, 64),),) * 2
            return Call("all_to_all", "0", *sizes, line, "BFloat16")

        counts = self._collective("all_to_all", "0", 1, 39, "Long")
        loss = self._collective("all_reduce", "0", 1, 48)
        return lambda rank: [counts(rank), exchange(rank, 40), Compute(2), exchange(rank, 44), loss(rank)]

    def _rooted(self) -> Any:
        """Ops of which one rank has a list. nccl has a scatter's lists among the outputs, and an undefined tensor on
        the other ranks."""
        root = self.chance.randrange(self.world)

        def body(rank: int) -> list[Step]:
            lists = ((32,),) * self.world if rank == root else ((0,),)
            return [
                Call("scatter", "0", ((32,),), lists, 21),
                Compute(2),
                Call("gather", "0", ((32,),), lists, 25),
                self._collective("reduce", "0", 7, 27)(rank),
                self._collective("broadcast", "0", 9, 28)(rank),
            ]

        return body


def _places(program: list[Step], p2p: bool = False) -> list[int]:
    return [n for n, step in enumerate(program) if isinstance(step, Call) and step.is_p2p == p2p]


def plant(job: Job, kind: str, chance: random.Random) -> bool:
    """Whether this job has a place for this bug."""
    guilty = chance.randrange(len(job.programs))
    program = job.programs[guilty]
    places = _places(program, p2p=kind.startswith("p2p"))
    if len(places) < 4:
        return False
    place = places[chance.randrange(len(places) // 2, len(places) - 1)]
    call = program[place]
    assert isinstance(call, Call)
    job.guilty, job.lines = (guilty,), (call.line,)
    return BUGS[kind](job, program, place, call, chance)


def _host_stuck(job: Job, program: list[Step], place: int, call: Call, _: random.Random) -> bool:
    program.insert(place, Stuck())
    job.kinds = ("missing-rank",)
    job.lines = job.lines if len(job.groups) == 1 else ()  # else ranks of another group may wait longest
    return len(job.groups[call.group]) > 1


def _dead(job: Job, program: list[Step], place: int, call: Call, chance: random.Random) -> bool:
    _host_stuck(job, program, place, call, chance)
    job.dead, job.kinds, job.lines = job.guilty, ("missing-rank", "rank-unseen"), ()
    return True


def _device_stuck(job: Job, program: list[Step], place: int, call: Call, _: random.Random) -> bool:
    program.insert(place, Stuck("device"))
    job.kinds = ("stuck-on-device",)
    job.guilty = ()
    return True


def _skip(job: Job, program: list[Step], place: int, call: Call, _: random.Random) -> bool:
    del program[place]
    job.kinds = ("missing-rank", "mismatched-op", "mismatched-shape", "mismatched-dtype", "order-swap")
    job.kinds += ("p2p-against-collective",)
    job.lines = ()
    return True


def _swap(job: Job, program: list[Step], place: int, call: Call, _: random.Random) -> bool:
    later = next(
        (
            n
            for n, step in enumerate(program[place + 1 : place + 4], place + 1)
            if isinstance(step, Call) and step.group == call.group and not step.is_p2p and not step.fits(call)
        ),
        None,
    )
    if later is None or any(isinstance(step, Batch | Stuck) for step in program[place:later]):
        return False
    program[place], program[later] = program[later], program[place]
    job.kinds, job.lines = ("order-swap", "mismatched-op", "mismatched-shape"), ()
    return True


def _shape(job: Job, program: list[Step], place: int, call: Call, _: random.Random) -> bool:
    if call.name in ("all_to_all", "scatter"):
        return False
    program[place] = replace(call, inputs=tuple((shape[0] + 3, *shape[1:]) for shape in call.inputs))
    job.kinds = ("mismatched-shape",)
    return True


def _dtype_bug(job: Job, program: list[Step], place: int, call: Call, chance: random.Random) -> bool:
    program[place] = replace(call, dtype=chance.choice([d for d in SIZES if d != call.dtype]))
    job.kinds = ("mismatched-dtype",)
    return True


def _other_op(job: Job, program: list[Step], place: int, call: Call, chance: random.Random) -> bool:
    if call.name in ("scatter", "gather", "all_to_all"):
        return False
    other = chance.choice([each for each in ("all_reduce", "broadcast", "reduce") if each != call.name])
    program[place] = replace(call, name=other, outputs=call.inputs)
    job.kinds = ("mismatched-op",)
    return True


def _p2p_missing(job: Job, program: list[Step], place: int, call: Call, _: random.Random) -> bool:
    del program[place]
    other = "recv" if call.name == "send" else "send"
    job.kinds = (f"unmatched-{other}", "wrong-peer", "p2p-deadlock", "missing-rank", "p2p-against-collective")
    job.guilty, job.lines = (job.guilty[0], job.groups[call.group][call.peer]), ()
    return True


def _p2p_peer(job: Job, program: list[Step], place: int, call: Call, chance: random.Random) -> bool:
    me = job.groups[call.group].index(job.guilty[0])
    others = [n for n in range(len(job.groups[call.group])) if n not in (me, call.peer)]
    program[place] = replace(call, peer=chance.choice(others))
    job.kinds = ("wrong-peer", "p2p-deadlock")  # two that wait for each other
    return True


def _p2p_size(job: Job, program: list[Step], place: int, call: Call, _: random.Random) -> bool:
    program[place] = replace(call, inputs=((8, 63),), outputs=((8, 63),))
    job.kinds = ("p2p-size",)
    job.guilty = (job.guilty[0], job.groups[call.group][call.peer])
    return True


def _straggler(job: Job, program: list[Step], place: int, call: Call, _: random.Random) -> bool:
    late: list[Step] = []
    for step in program:
        late += [Compute(200), step] if isinstance(step, Call) and step.line == call.line else [step]
    late_count = len(late) - len(program)
    program[:] = late
    for other in job.programs:  # hosts do not run ahead: the wait is seen where it happens
        other[:] = [each for step in other for each in ((step, Sync()) if isinstance(step, Call) else (step,))]
    job.kinds, job.lines = ("straggler",), ()
    return late_count >= 6


BUGS = {
    "host-stuck": _host_stuck,
    "dead": _dead,
    "device-stuck": _device_stuck,
    "skip": _skip,
    "swap": _swap,
    "shape": _shape,
    "dtype": _dtype_bug,
    "other-op": _other_op,
    "p2p-missing": _p2p_missing,
    "p2p-peer": _p2p_peer,
    "p2p-size": _p2p_size,
    "straggler": _straggler,
}


def style(chance: random.Random, world: int) -> Style:
    """Each with something that is not usual."""
    way = Style(
        version=f"2.{chance.choice([0, 2, 3, 4, 7, 9, 10, 10, 10, 11])}",
        is_json=chance.random() < 0.2,
        prefix=chance.choice(
            ["nccl_trace_rank_", "nccl_trace_rank_", "dump_", "trace.2026-11-18.host3.rank", "job_7_r"]
        ),
        has_frames=chance.random() < 0.8,
        has_timing=chance.random() < 0.3,
        has_config=chance.random() < 0.85,
        buffer=chance.choice([2000, 2000, 2000, 70]),
        is_cut=(chance.randrange(world),) if chance.random() < 0.1 else (),
        backend=chance.choice(["nccl", "nccl", "nccl", "xccl", "hccl", "rccl"]),
        is_copied=chance.random() < 0.2,
    )
    return replace(way, suffix=chance.choice(["", ".json"]) if way.is_json else chance.choice(["", "", ".pkl"]))


def made(seed: int, kind: str = "") -> tuple[Job, Style, random.Random]:
    """A job of this seed, with a bug of this kind; correct without."""
    chance = random.Random(f"{seed} {kind}")
    while True:
        job = Maker(chance).job()
        way = style(chance, len(job.programs))
        if not kind or plant(job, kind, chance):
            return (
                job,
                replace(way, is_cut=() if kind else way.is_cut, has_config=way.has_config or kind == "dead"),
                chance,
            )


def judge(seed: int, kind: str) -> tuple[bool, str]:
    """Whether explain is right, and what it said."""
    job, way, chance = made(seed, kind)
    with tempfile.TemporaryDirectory() as name:
        write(Path(name), job, way, chance)
        try:
            told = to_json(explain(Path(name)))
        except UsageError as error:
            return False, f"refused: {error} | {way}"
    found = told["verdict"]
    said = f"{found['kind']} {found['ranks']} {found['sites']} {found['message']}" if found else "nothing"
    wanted = f"{job.kinds} {job.guilty} {job.lines} of {len(job.programs)} | {way}"
    return is_right(job, way, told), f"{said} | wanted {wanted}"


def is_right(job: Job, way: Style, told: dict[str, Any]) -> bool:
    if not job.kinds:
        return not told["findings"]
    found = told["verdict"]
    if not found or found["kind"] not in job.kinds:
        return False
    if job.guilty and not set(found["ranks"]) & set(job.guilty):
        return False
    if len(found["ranks"]) > max(2, len(job.guilty)) and job.guilty:
        return False
    has_lines = way.has_frames and not way.is_json and bool(job.lines)
    return not has_lines or any(f":{line}" in site for line in job.lines for site in found["sites"])


def main(first: int, last: int, kinds: list[str]) -> None:
    right: Counter[str] = Counter()
    for seed in range(first, last):
        for kind in kinds or ["", *BUGS]:
            is_good, said = judge(seed, kind)
            right[kind] += is_good
            if not is_good:
                print(f"{seed} {kind or 'correct'}: {said}", flush=True)
    for kind in kinds or ["", *BUGS]:
        print(f"{kind or 'correct':12} {right[kind]} of {last - first}")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), ["" if each == "correct" else each for each in sys.argv[3:]])
