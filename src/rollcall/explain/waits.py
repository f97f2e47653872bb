"""Who waited for whom: in each call, everyone for the last to arrive."""

from collections import Counter
from dataclasses import dataclass

from rollcall.explain.calls import Call
from rollcall.explain.load import Run


@dataclass(frozen=True)
class Waits:
    """Seconds per rank, and how often each was the last; `run_s` is from the first op to the last."""

    caused_s: dict[int, float]
    suffered_s: dict[int, float]
    last: dict[int, int]
    calls: int
    run_s: float


def count(run: Run, calls: list[Call]) -> Waits:
    caused: Counter[int] = Counter()
    suffered: Counter[int] = Counter()
    last: Counter[int] = Counter()
    counted = 0
    for call in calls:
        ops = call.ops
        if call.missing or len(ops) < 2 or any(op.op in ("init", "ddp") or op.is_async for op in ops.values()):
            continue
        counted += 1
        latest = max(ops.values(), key=lambda op: op.entered_ns)
        last[latest.rank] += 1
        for op in ops.values():
            waited_ns = latest.entered_ns - op.entered_ns
            suffered[op.rank] += waited_ns
            caused[latest.rank] += waited_ns
    times = [ns for rank in run.ranks.values() for op in rank.ops for ns in (op.entered_ns, op.completed_ns) if ns]
    run_s = (max(times) - min(times)) / 1e9 if times else 0.0
    return Waits(
        {rank: caused[rank] / 1e9 for rank in sorted(run.ranks)},
        {rank: suffered[rank] / 1e9 for rank in sorted(run.ranks)},
        {rank: last[rank] for rank in sorted(run.ranks)},
        counted,
        run_s,
    )
