"""`rollcall rehearse --check`: the same script on real gloo ranks, compared op by op with rehearsed ones.

Real ranks that hang, or that fail, are compared as far as they came.
"""

import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from rollcall.errors import RollcallError, UsageError
from rollcall.explain.loading.load import Run, load
from rollcall.explain.loading.table import Op
from rollcall.protocol.plan import Program
from rollcall.runs import find_run

RANKS = range(2, 9)  # on one machine
_HANG_S, _TIMEOUT_S = 20, 600
_MOST_ERROR = 200  # characters


@dataclass(frozen=True)
class OpDifference:
    """The first op that a rehearsed rank and the real one do not have in common; None: one has no further op."""

    rank: int
    number: int
    rehearsed: Op | None
    real: Op | None
    fields: tuple[str, ...]


@dataclass(frozen=True)
class CheckResult:
    ranks: int
    ops: int  # that are the same
    outcome: str  # of the real run
    differences: tuple[OpDifference, ...]
    why: str = ""  # the error for which it failed
    unsized: tuple[str, ...] = ()  # lines whose ops have other sizes, since they send numbers that are not known


def check_size(world_size: int) -> None:
    if world_size not in RANKS:
        raise UsageError(f"--check starts real ranks on this machine: use -n {RANKS[0]} to {RANKS[-1]}")


def run_real(program: Program, ranks: int, steps: int, folder: Path) -> Path:
    """The folder of the real run, which is kept inside that of the rehearsal."""
    home = folder / "real"
    home.mkdir()
    words = [sys.executable, "-m", "rollcall", "run", "-n", str(ranks), "--hang-after", str(_HANG_S)]
    words += ["--on-hang", "stop", "--timeout", str(_TIMEOUT_S), "-m", "rollcall.rehearse.real_rank", str(steps)]
    command = [*words, str(home / "files"), program.target, *program.args]
    with open(home / "output.log", "w") as log, tempfile.TemporaryDirectory(prefix="rollcall-") as temporary:
        env = {**os.environ, "ROLLCALL_DIR": str(home), "CUDA_VISIBLE_DEVICES": "", "TMPDIR": temporary}
        subprocess.run(command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False)
    try:
        return find_run(None, home / "runs")
    except UsageError:
        raise RollcallError(f"the real ranks did not start: see {home / 'output.log'}") from None


def compare(rehearsed: Run, real: Run, told: Collection[str] = ()) -> CheckResult:
    """`told`: lines at which objects with unknown numbers are pickled for other ranks. Their length depends on the
    numbers, so another size there is no error of the rehearsal."""
    differences: list[OpDifference] = []
    unsized: set[str] = set()
    same = 0
    is_partial = real.outcome != "ok"
    for rank in sorted(rehearsed.ranks):
        mine, its = _ops(rehearsed, rank), _ops(real, rank)
        if is_partial:
            mine, its = mine[: min(len(mine), len(its))], its[: min(len(mine), len(its))]
        found = _first_difference(rank, mine, its, told, unsized)
        same += len(mine) if found is None else found.number - 1
        differences += [found] if found else []
    return CheckResult(len(rehearsed.ranks), same, real.outcome, tuple(differences), unsized=tuple(sorted(unsized)))


def _ops(run: Run, rank: int) -> list[Op]:
    return list(run.ranks[rank].ops) if rank in run.ranks else []


_SIZE_FIELDS = {"bytes", "shapes", "splits"}


def _first_difference(
    rank: int, mine: list[Op], its: list[Op], told: Collection[str], unsized: set[str]
) -> OpDifference | None:
    """The first op that differs. A line of which only an unknown size differs is added to `unsized`."""
    for number, (rehearsed, real) in enumerate(zip_longest(mine, its), 1):
        if rehearsed is None or real is None:
            return OpDifference(rank, number, rehearsed, real, ("op",))
        fields = tuple(_differing(_described(rehearsed), _described(real)))
        if fields and _SIZE_FIELDS.issuperset(fields) and str(rehearsed.site) in told:
            unsized.add(str(rehearsed.site))
        elif fields:
            return OpDifference(rank, number, rehearsed, real, fields)
    return None


def _described(op: Op) -> dict[str, Any]:
    """Everything that must be equal. Not the device: real ranks use the CPU."""
    return {
        "op": op.op,
        "group": op.group.ranks,
        "bytes": op.size_bytes,
        "shapes": op.signature.get("shapes"),
        "dtype": op.signature.get("dtypes"),
        "splits": op.signature.get("splits"),
        "peer": op.peer,
        "tag": op.tag,
        "reduce op": op.reduce,
        "line": (Path(op.site.file).name, op.site.line) if op.site else None,
    }


def _differing(mine: dict[str, Any], its: dict[str, Any]) -> Iterator[str]:
    return (name for name, value in mine.items() if value != its[name])


def check(rehearsed: Run, program: Program, steps: int, folder: Path, told: Collection[str] = ()) -> CheckResult:
    real = run_real(program, rehearsed.world_size, steps, folder)
    return replace(compare(rehearsed, load(real), told), why=_error(real))


_ERROR = re.compile(r"^(?:\[rank\d+\]: )?((?:\w+\.)*\w*(?:Error|Exception)\b.*)$", re.M)


def _error(real: Path) -> str:
    """The last error that a real rank printed; empty if none did. An error of CUDA may have many lines."""
    found = [said for log in sorted(real.glob("logs/*/rank-*.log")) for said in _ERROR.findall(log.read_text())]
    return textwrap.shorten(found[-1], _MOST_ERROR, placeholder=" …") if found else ""


def lines(comparison: CheckResult, deciding: Sequence[str] = ()) -> Iterator[str]:
    """`deciding`: lines that read values which are not known, and by which the program may decide."""
    how = "" if comparison.outcome == "ok" else f", as far as the real run came ({_ended(comparison)})"
    if comparison.unsized:
        how += f", except for sizes that depend on unknown numbers ({', '.join(comparison.unsized)})"
    if not comparison.differences:
        yield f"checked   {comparison.ops:,} ops of {comparison.ranks} ranks are the same on real gloo ranks{how}"
        return
    yield f"checked   {len(comparison.differences)} of {comparison.ranks} ranks differ from real gloo ranks{how}:"
    for each in comparison.differences:
        yield (
            f"  rank {each.rank}, op {each.number}: {_in_words(each.rehearsed)} rehearsed,"
            f" {_in_words(each.real)} in reality ({', '.join(each.fields)})"
        )
    if deciding:
        yield f"  this may come of values that are not known ({', '.join(deciding)}): --assume {deciding[0]}=VALUE"


def _ended(comparison: CheckResult) -> str:
    words = "it was stopped" if comparison.outcome == "stopped" else f"it {comparison.outcome}"
    return f"{words}: {comparison.why}" if comparison.why and comparison.outcome == "failed" else words


def _in_words(op: Op | None) -> str:
    return f"{op.op} of {op.size_bytes:,} bytes at {op.site}" if op else "none"
