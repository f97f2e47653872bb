"""From the command to the first all_reduce with a warm server, beside a cold start, torchrun and mp.spawn.

A warm server serves only commands with its own environment. So all commands here share the folder that is named there.
"""

import argparse
import sys
from pathlib import Path

from contenders import PROGRAMS, ROLLCALL, TORCHRUN
from jobs import MARK, Jobs
from results import Goal, Result, median_or_none, progress, seconds, table

GOALS_S = {4: 0.25, 16: 0.4}  # by ranks
WARM = "rollcall run, warm"
NAMES = ("torchrun", "mp.spawn", "rollcall run, cold", WARM, "rollcall.spawn, cold", "rollcall.spawn, warm")


def measure(jobs: Jobs, options: argparse.Namespace) -> Result:
    shared = jobs.new_folder()
    (shared / "runtime").mkdir(mode=0o700)
    places = {"XDG_RUNTIME_DIR": "runtime", "TMPDIR": "", "ROLLCALL_DIR": "rollcall", "HF_HOME": "huggingface"}
    env = {MARK: str(shared), **{name: str(shared / place) for name, place in places.items()}}
    _end_well(jobs, [str(ROLLCALL.executable), "warm"], env, options.timeout_s)
    try:
        taken = {ranks: _alternate(jobs, ranks, env, options) for ranks in options.warm_ranks}
    finally:
        _end_well(jobs, [str(ROLLCALL.executable), "warm", "--stop"], env, options.timeout_s)
    made = table("Command to end of first all_reduce", "ranks", *NAMES)
    for ranks, row in taken.items():
        made.add_row(str(ranks), *(seconds(median_or_none(row[name])) for name in NAMES))
    return Result([made], _goals(taken), {str(ranks): row for ranks, row in taken.items()})


def _alternate(
    jobs: Jobs, ranks: int, env: dict[str, str], options: argparse.Namespace
) -> dict[str, list[float | None]]:
    taken: dict[str, list[float | None]] = {name: [] for name in NAMES}
    for number in range(1, options.warm_repeats + 1):
        for name in NAMES:
            took_s = _start(jobs, _command(name, ranks), {**env, **_switch(name)}, ranks, options.timeout_s)
            progress(f"{ranks} ranks, {number} of {options.warm_repeats}: {name} {seconds(took_s)}")
            taken[name].append(took_s)
    return taken


def _command(name: str, ranks: int) -> list[str]:
    if "spawn" in name:
        program = "spawned_all_reduce.py" if name == "mp.spawn" else "rollcall_spawn.py"
        return [sys.executable, str(PROGRAMS / program), str(ranks)]
    contender = TORCHRUN if name == "torchrun" else ROLLCALL
    return contender.command(ranks, "first_all_reduce.py")


def _switch(name: str) -> dict[str, str]:
    return {"ROLLCALL_WARM": "0"} if name.endswith("cold") else {}


def _start(jobs: Jobs, words: list[str], env: dict[str, str], ranks: int, timeout_s: float) -> float | None:
    """None if it failed, or a run that was to be warm was not: it says so."""
    shared = Path(env[MARK])
    for old in shared.glob("done-*"):
        old.unlink()
    with jobs.start(words, **env) as job:
        code = job.wait(timeout_s)
        done_ns = [int(path.read_text()) for path in shared.glob("done-*")]
        if code != 0 or len(done_ns) != ranks or "without the warm server" in job.last_words():
            progress(job.last_words())
            return None
        return (max(done_ns) - job.started_ns) / 1e9


def _end_well(jobs: Jobs, words: list[str], env: dict[str, str], timeout_s: float) -> None:
    with jobs.start(words, **env) as job:
        if job.wait(timeout_s) != 0:
            progress(job.last_words())


def _goals(taken: dict[int, dict[str, list[float | None]]]) -> list[Goal]:
    goals = []
    for ranks, row in taken.items():
        if ranks in GOALS_S:
            found = median_or_none(row[WARM])
            is_met = None if found is None else found <= GOALS_S[ranks]
            name = f"warm start to first all_reduce, {ranks} ranks"
            goals.append(Goal(name, f"≤ {GOALS_S[ranks]:g} s", seconds(found), is_met))
    return goals
