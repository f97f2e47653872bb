"""What changed between two runs: the first call at which they part, and where the time went."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rollcall.explain.compare import calls, times
from rollcall.explain.compare.calls import CallDifferences, call_in_words
from rollcall.explain.compare.times import TimeDifference, Times
from rollcall.explain.evidence import Evidence
from rollcall.explain.loading.load import Run, load
from rollcall.explain.loading.table import Op
from rollcall.units import in_seconds


@dataclass(frozen=True)
class RunComparison:
    first: Run
    second: Run
    calls: CallDifferences
    times: Times


def compare(first: Path, second: Path) -> RunComparison:
    """UsageError if one of them cannot be read."""
    one, other = Evidence(load(first)), Evidence(load(second))
    return RunComparison(one.run, other.run, calls.compare(one.run, other.run), times.compare(one, other))


def runs_in_words(found: RunComparison) -> list[str]:
    """One line per run."""
    took = (found.times.first_s, found.times.second_s)
    counts = (found.calls.first, found.calls.second)
    lines = [
        f"{run.name}: {run.outcome}, {run.world_size} ranks, {count:,} calls, {in_seconds(seconds)}"
        for run, count, seconds in zip((found.first, found.second), counts, took, strict=True)
    ]
    percent = round(100 * (took[1] / took[0] - 1)) if took[0] else 0
    lines[1] += f" ({percent:+d} %)" if percent else ""
    return lines


def calls_in_words(found: RunComparison) -> str:
    if found.calls.parting is None:
        return f"all {found.calls.first:,} calls are the same, in the same order"
    return f"the runs part at call {found.calls.parting.number:,}: {found.calls.parting.what}"


def times_in_words(found: RunComparison) -> str:
    """The difference that explains most: of one rank if it stands out, for then the others waited for it; else of a
    line."""
    if found.times.slow_rank is not None:
        rank, line = found.times.slow_rank
        where = f", mostly before {line.place}" if line else ""
        return f"{rank.place} computed {in_seconds(rank.seconds)} longer{where}; the others waited for it"
    own = [each for each in found.times.notable if each.by == "line" and each.sort != "waiting"]
    notable = own or [each for each in found.times.notable if each.by == "line"]
    if not notable:
        return "no line took more or less time beyond noise"
    more = "more" if notable[0].seconds > 0 else "less"
    if notable[0].sort == "communicating" and _is_everywhere(found.times, notable[0].seconds > 0):
        whole = next(each for each in found.times.whole if each.sort == "communicating")
        took = f"communicating took {in_seconds(abs(whole.seconds))} {more} per rank, on every line"
        return f"{took}, as if the network or the machines became {'slower' if whole.seconds > 0 else 'faster'}"
    return f"{in_words(notable[0])} took {in_seconds(abs(notable[0].seconds))} {more} per rank"


def _is_everywhere(times: Times, is_slower: bool) -> bool:
    """Whether each of several lines communicates at least half as long again as before, or so much shorter: an edit
    changes one line, another network all of them."""
    longest_s = max(times.first_s, times.second_s)
    lines = [each for each in times.differences if each.by == "line" and each.sort == "communicating"]
    lines = [each for each in lines if max(each.first_s, each.second_s) > _MATTERS * longest_s]
    sides = [(each.second_s, each.first_s) if is_slower else (each.first_s, each.second_s) for each in lines]
    return len(lines) > 1 and all(longer >= 1.5 * shorter > 0 for longer, shorter in sides)


_MATTERS = 0.01  # of the longer run


def in_words(difference: TimeDifference) -> str:
    """`computing before all_reduce at train.py:12 in step`."""
    joined = {"computing": "computing before", "waiting": "waiting in", "communicating": "communicating in"}
    if difference.by in ("rank", "phase", "run"):
        return f"{difference.place}: {difference.sort}"
    return f"{joined[difference.sort]} {difference.place}"


def to_json(found: RunComparison) -> dict[str, Any]:
    parting = found.calls.parting
    return {
        "runs": [
            {"run": run.name, "outcome": run.outcome, "ranks": run.world_size, "calls": count, "seconds": seconds}
            for run, count, seconds in (
                (found.first, found.calls.first, found.times.first_s),
                (found.second, found.calls.second, found.times.second_s),
            )
        ],
        "parting": None
        if parting is None
        else {
            "kind": parting.kind,
            "ranks": list(parting.ranks),
            "call": parting.number,
            "first": _op(parting.first),
            "second": _op(parting.second),
            "message": parting.what,
        },
        "calls_left_out": found.calls.left_out,
        "time": [asdict(each) for each in found.times.whole],
        "differences": [asdict(each) for each in found.times.differences],
        "problems": [*found.first.problems, *found.second.problems],
    }


def _op(op: Op | None) -> dict[str, Any] | None:
    if op is None:
        return None
    site = f"{op.site.file}:{op.site.line}" if op.site else ""
    return {"op": op.op, "group": op.group.name, "seq": op.seq, "site": site, "words": call_in_words(op)}
