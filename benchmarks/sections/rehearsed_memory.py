"""The memory that a rehearsal predicts for one rank, beside what was measured on a GPU.

The predictions are kept in memory_predictions.json, and are made before anything is measured.
programs/measure_memory.py measures; it also runs on machines that have torch and nothing else.
"""

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from contenders import PROGRAMS, REPOSITORY
from jobs import Jobs
from results import Goal, Result, how_it_failed, progress, table
from rollcall.protocol.plan import Program
from rollcall.rehearse import forked_ranks, rehearsal
from rollcall.rehearse.memory.allocator import replay
from rollcall.rehearse.memory.use import CATEGORIES, fits_within
from rollcall.rehearse.settings import GPUS, RehearsalSettings
from rollcall.torch_version import torch_version

PREDICTIONS = REPOSITORY / "benchmarks" / "memory_predictions.json"
CARDS = (0.94, 1.01, 1.06)  # of the predicted peak: cards that are a little too small, and a little larger
MOST_ALLOCATED, MOST_RESERVED = 0.02, 0.10
_GIB = 2**30
_LARGE = replace(GPUS["h200"], reported_gib=1 << 20)
_LOOK = "import sys, torch; sys.exit(0 if torch.cuda.is_available() else 3)"


def measure(jobs: Jobs, options: argparse.Namespace) -> Result:
    predicted = json.loads(PREDICTIONS.read_text())["configurations"]
    measured = _measured(jobs, options)
    goals = list(_goals(predicted, measured)) if measured else [Goal("memory", "≤ 2 % and ≤ 10 %", "no GPU here", None)]
    return Result([_table(predicted, measured)], goals, {"predicted": predicted, "measured": measured})


def _measured(jobs: Jobs, options: argparse.Namespace) -> dict[str, Any]:
    if options.measured:
        found: dict[str, Any] = json.loads(options.measured.read_text())["configurations"]
        return found
    with jobs.start([sys.executable, "-c", _LOOK]) as job:
        if job.wait(options.timeout_s) != 0:
            progress("torch finds no GPU here: only the predictions are shown")
            return {}
    with jobs.start([sys.executable, str(PROGRAMS / "measure_memory.py"), "memory.json"]) as job:
        if (code := job.wait(options.timeout_s)) != 0:
            progress(f"measure_memory.py {how_it_failed(code)}:\n{job.last_words()}")
            return {}
        return json.loads((job.folder / "memory.json").read_text())["configurations"]  # type: ignore[no-any-return]


def _table(predicted: dict[str, Any], measured: dict[str, Any]) -> Any:
    columns = ("allocated", "measured", "", "reserved", "measured", "", "fits 3 smaller cards", "in reality")
    made = table("Memory of one rank, GiB", "", *columns)
    for name, mine in predicted.items():
        its = measured.get(name, {})
        cells = []
        for key in ("allocated_bytes", "reserved_bytes"):
            least, most = _range(mine, key)
            told = f"{most / _GIB:.2f}" if least == most else f"{least / _GIB:.2f} to {most / _GIB:.2f}"
            cells += [told, *_beside(mine, key, its.get(key))]
        said = ", ".join(card["fits"] for card in mine["cards"])
        real = ", ".join("yes" if card.get("fits") else "no" for card in its.get("cards", ()))
        made.add_row(name, *cells, said, real or "–")
    return made


def _beside(mine: dict[str, Any], key: str, real: int | None) -> tuple[str, str]:
    return (f"{real / _GIB:.2f}", f"{_error(mine, key, real):+.1%}") if real else ("–", "–")


def _range(mine: dict[str, Any], key: str) -> tuple[int, int]:
    """DDP's peak depends on when nccl drops what it has reduced, which differs from run to run."""
    return mine["least_bytes" if key == "allocated_bytes" else key], mine[key]


def _error(mine: dict[str, Any], key: str, real: int) -> float:
    """How far the nearest value of the range is from what was measured."""
    least, most = _range(mine, key)
    return min(max(real, least), most) / real - 1


def _goals(predicted: dict[str, Any], measured: dict[str, Any]) -> Iterator[Goal]:
    yield _worst("allocated", "allocated_bytes", MOST_ALLOCATED, predicted, measured)
    yield _worst("reserved", "reserved_bytes", MOST_RESERVED, predicted, measured)
    cards = [
        (mine["fits"], real["fits"])
        for name, found in predicted.items()
        for mine, real in zip(found["cards"], measured.get(name, {}).get("cards", ()), strict=False)
        if "fits" in real and mine["limit_bytes"] == real["limit_bytes"]
    ]
    wrong = sum(said == "yes" and not real for said, real in cards)
    yield Goal(f"said to fit, and does not, of {len(cards)} cards", "0", str(wrong), wrong == 0 and len(cards) >= 20)


def _worst(what: str, key: str, most: float, predicted: dict[str, Any], measured: dict[str, Any]) -> Goal:
    errors = [
        _error(mine, key, its[key]) for name, mine in predicted.items() if (its := measured.get(name, {})).get(key)
    ]
    worst = max(errors, key=abs, default=0.0)
    is_met = len(errors) == len(predicted) and abs(worst) <= most
    return Goal(
        f"memory {what}, {len(errors)} of {len(predicted)} configurations", f"± {most:.0%}", f"{worst:+.1%}", is_met
    )


def predict(path: Path) -> None:
    """Rehearse each configuration on a card without a limit; then try its allocations on cards close to its need."""
    sys.path.insert(0, str(PROGRAMS))
    from memory_configurations import CONFIGURATIONS, described

    found: dict[str, Any] = {}
    with contextlib.closing(forked_ranks.start_server(rehearsal.build_library())) as server, Jobs() as jobs:
        for name, made in CONFIGURATIONS.items():
            predicted = _predict_one(_rehearse(server, jobs, name, made.world_size))
            found[name] = {"configuration": described(made), **predicted}
            progress(f"{name}: {found[name]['allocated_bytes'] / _GIB:.2f} GiB")
    path.write_text(json.dumps({"torch": torch_version(), "configurations": found}, indent=2) + "\n")


def _predict_one(result: forked_ranks.RankResult) -> dict[str, Any]:
    whole = result.memory
    assert whole is not None
    limits = [int(share * whole.allocated_bytes) for share in CARDS]
    peak = {"place": whole.peak.place, "phase": whole.peak.phase}
    return {
        "least_bytes": whole.least_bytes,
        "allocated_bytes": whole.allocated_bytes,
        "reserved_bytes": whole.reserved_bytes,
        "peak": {**peak, **dict(zip(CATEGORIES, whole.peak.size_bytes, strict=True))},
        "cards": [{"limit_bytes": limit, "fits": _fits(result, limit)} for limit in limits],
    }


def _fits(result: forked_ranks.RankResult, limit_bytes: int) -> str:
    tried = replay(result.memory_log, limit_bytes)
    return fits_within(tried.has_overflowed, tried.peak_allocated_bytes, limit_bytes)


def _rehearse(server: Any, jobs: Jobs, name: str, world_size: int) -> forked_ranks.RankResult:
    folder = jobs.new_folder()
    settings = RehearsalSettings(world_size, min(world_size, 8), (0,), 0, _LARGE, logs_memory=True)
    program = Program("script", str(PROGRAMS / "memory_configurations.py"), (name,))
    result = forked_ranks.ForkedRanks(settings, program, folder, server).run([0], None, lambda: None)[0]
    if result.exit_code or result.memory is None:
        log = (folder / "logs" / "attempt-0" / "rank-0.log").read_text()
        sys.exit(f"the rehearsal of {name!r} failed:\n{log[-2000:]}")
    return result
