"""The ranks of an experiment: forked from a warm server, or started on virtual hosts by `rollcall run`.

Either way each of them makes its world, measures, and leaves plain values.
"""

import atexit
import functools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rollcall.errors import RankError, RollcallError, UsageError
from rollcall.functions.api import raise_first
from rollcall.functions.pool import CallResult, CallServer
from rollcall.lab import NAMES
from rollcall.lab.experiment import Arm, Experiment, Results, Settings, load, source_of
from rollcall.lab.runner import recording, standstill
from rollcall.lab.runner.rank_world import meet

# What ranks would otherwise import one by one.
_PRELOAD = ("rollcall.initialization.process_group", "rollcall.record.recorder")
_FOR_DDP = ("torch._dynamo", "torch.nn.parallel")  # which its first module imports: 0.7 s
_servers: dict[str, CallServer] = {}  # at most one

_LIMIT_S = 600.0  # of an experiment whose ranks should all come back
_USAGE = 2
_PLACE = re.compile(r"\[/\S+:\d+\] ")  # in gloo's sources
_HUNG = 124  # rollcall run's exit code for a run that it ended


@dataclass(frozen=True)
class Ending:
    """How the world of one arm ended, what its ranks brought back, and what explain says of its recording."""

    ended: str  # well, failed, hung
    values: list[Any]
    errors: list[str]  # by rank; empty where there was none
    seconds: float
    verdict: dict[str, Any] | None
    waits: list[dict[str, Any]]
    run_s: float
    folder: str


def warm_up(names: Sequence[str] = NAMES) -> None:
    """Start the server, with what these experiments need: it imports torch while we go on."""
    if not _servers:
        wants_ddp = any("DistributedDataParallel" in source_of(name) for name in names)
        _servers["warm"] = CallServer(preload=(*_PRELOAD, *(_FOR_DDP if wants_ddp else ())))
        atexit.register(_servers["warm"].close)
    _servers["warm"].start()


def _server() -> CallServer:
    warm_up()
    return _servers["warm"]


def measure(experiment: Experiment, settings: Settings, folder: Path, is_recorded: bool) -> Results:
    """All ranks measure in one world; and, where it is to be recorded, meet once more for that."""
    if settings.virtual_hosts:
        ran = _run_on_hosts(experiment, None, settings, folder, is_recorded)
        values, errors = _read(folder, settings.world_size)
        if ran.returncode:
            raise _failure(ran, errors)
        return values
    on_rank = functools.partial(_measure, experiment.name, None, settings, folder if is_recorded else None)
    answers = _server().call(on_rank, settings.ranks, timeout_s=_LIMIT_S)
    _raise_first(experiment, answers)
    return plain([answer.value for answer in answers])


def measure_arm(experiment: Experiment, arm: Arm, settings: Settings, folder: Path) -> dict[str, Any]:
    """One arm in a world of its own, recorded; that it fails or hangs is what we want to see."""
    folder.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    hosts = settings.virtual_hosts or arm.virtual_hosts
    ended, values, errors, run_folder = (_on_hosts if hosts else _here)(experiment, arm, settings, folder)
    seconds = time.monotonic() - begun
    if ended != "well" and not arm.may_fail:
        why = next((error for error in errors if error), f"it did not come to its end within {arm.limit_s:g} s")
        raise RankError(f"{experiment.name}, arm {arm.name!r}, {ended}: {why}; its recording is in {run_folder}")
    verdict, waits, run_s = _explain(run_folder)
    return asdict(Ending(ended, values, errors, seconds, verdict, waits, run_s, str(run_folder)))


def call(
    on_rank: Callable[[int], Any], ranks: int, env: dict[str, str], timeout_s: float | None = None
) -> list[CallResult]:
    """A function on ranks whose output is shown as it comes."""
    return _server().call(on_rank, ranks, env=env, timeout_s=timeout_s)


def plain(value: Any) -> Any:
    """As it will look when it has been to a file and back."""
    return json.loads(json.dumps(value))


# ---- from the warm server


def _measure(name: str, arm: str | None, settings: Settings, folder: Path | None, rank: int) -> Any:
    """On a rank: make the world, measure, and leave it; and once more, for the record, where there is a folder."""
    experiment = load(name)
    with meet(settings.backend) as world:
        if arm is not None:
            return experiment.measure(world, arm, settings.trials)
        value = experiment.measure(world, settings.trials, **settings.extras)
    if folder is not None:
        recording.once_more(experiment, settings, rank, settings.ranks, folder)
    return value


def _measure_recorded(name: str, arm: str, settings: Settings, folder: Path, rank: int) -> Any:
    from rollcall.record import recorder

    rings = recorder.begin(folder, rank, settings.ranks, attempt=0)
    try:
        value = _measure(name, arm, settings, None, rank)
    except BaseException as error:
        rings.note_end(1, error)
        raise
    rings.note_end(0, None)
    return value


def _here(experiment: Experiment, arm: Arm, settings: Settings, folder: Path) -> tuple[str, list[Any], list[str], Path]:
    on_rank = functools.partial(_measure_recorded, experiment.name, arm.name, settings, folder)
    is_stuck = standstill.watch(folder, settings.ranks, arm.limit_s) if arm.may_fail else None
    limit_s = _LIMIT_S if arm.may_fail else arm.limit_s
    answers = _server().call(on_rank, settings.ranks, timeout_s=limit_s, capture=True, is_stuck=is_stuck)
    _refuse_usage(answers)
    failed = [answer for answer in answers if answer.failed]
    ended = "failed" if failed else "hung" if any(answer.exit_code is None for answer in answers) else "well"
    _note_run(folder, ended, answers)
    _keep_output(folder, answers)
    errors = [first_line(answer.error) if answer.failed else "" for answer in answers]
    return ended, plain([answer.value for answer in answers]), errors, folder


def _raise_first(experiment: Experiment, answers: list[CallResult]) -> None:
    """What went wrong on a rank: its own traceback, and one sentence."""
    try:
        raise_first(answers, _LIMIT_S)
    except UsageError:
        raise
    except Exception as error:
        print(*getattr(error, "__notes__", ()), sep="\n", file=sys.stderr, flush=True)
        raise RankError(f"{experiment.name} failed on a rank ({first_line(error)}): see its traceback above") from None


def _refuse_usage(answers: list[CallResult]) -> None:
    """A wrong option is no result of the experiment."""
    for answer in answers:
        if isinstance(answer.error, UsageError):
            raise answer.error


def _note_run(folder: Path, ended: str, answers: list[CallResult]) -> None:
    """What explain wants to know beside the rings."""
    codes = {str(a.rank): a.exit_code for a in answers if a.exit_code is not None}
    asked = {str(a.rank): True for a in answers if a.exit_code is None}
    outcome = {"well": "ok", "failed": "failed", "hung": "stopped"}[ended]
    attempt = {"attempt": 0, "world_size": len(answers), "exit_codes": codes, "asked": asked}
    (folder / "run.json").write_text(json.dumps({"outcome": outcome, "attempts": [attempt]}) + "\n")


def _keep_output(folder: Path, answers: list[CallResult]) -> None:
    """What the ranks printed, where `rollcall run` would have put it."""
    logs = folder / "logs" / "attempt-0"
    logs.mkdir(parents=True, exist_ok=True)
    for answer in answers:
        (logs / f"rank-{answer.rank}.log").write_text(answer.output)


def first_line(error: BaseException | None) -> str:
    """An error in a line, for a table."""
    first = str(error).splitlines()[0] if str(error) else ""
    return f"{type(error).__name__}: {_PLACE.sub('', first)}".rstrip(": ")


def _explain(folder: Path) -> tuple[dict[str, Any] | None, list[dict[str, Any]], float]:
    from rollcall.explain.verdict import explain, to_json

    explanation = explain(folder)
    told = to_json(explanation)
    return plain(told["verdict"]), plain(told["waits"]), explanation.waits.run_s


# ---- on virtual hosts


def _on_hosts(
    experiment: Experiment, arm: Arm, settings: Settings, folder: Path
) -> tuple[str, list[Any], list[str], Path]:
    ran = _run_on_hosts(experiment, arm, settings, folder, is_recorded=True)
    values, errors = _read(folder, _world_size(arm, settings))
    if ran.returncode == _USAGE or not (folder / "runs").exists():
        raise _failure(ran, errors)
    ended = {0: "well", _HUNG: "hung"}.get(ran.returncode, "failed")
    return ended, values, errors, (folder / "runs" / "latest").resolve()


def _world_size(arm: Arm, settings: Settings) -> int:
    """An arm that chooses its hosts spreads the same ranks over them."""
    return settings.world_size if settings.virtual_hosts else settings.ranks


def _run_on_hosts(
    experiment: Experiment, arm: Arm | None, settings: Settings, folder: Path, is_recorded: bool
) -> "subprocess.CompletedProcess[str]":
    hosts = settings.virtual_hosts or (arm.virtual_hosts if arm else None) or 1
    per_host = settings.ranks if settings.virtual_hosts else settings.ranks // hosts
    words = [sys.executable, "-m", "rollcall", "run", "--virtual-hosts", str(hosts), "-n", str(per_host)]
    if arm is None:
        words += ["--no-record"]  # while it measures; its ranks begin to record themselves
    else:
        words += ["--hang-after", str(arm.limit_s), "--on-hang", "stop", "--grace", "1"]
        words += ["--link", arm.link] if arm.link else []
    words += ["-m", experiment.module, "--trials", str(settings.trials), "--results", str(folder)]
    words += ["--backend", settings.backend] if settings.backend else []
    words += ["--arm", arm.name] if arm else ["--recorded"] if is_recorded else []
    for name, value in settings.extras.items():
        words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    env = {**os.environ, "ROLLCALL_DIR": str(folder)}
    ran = subprocess.run(words, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    for line in ran.stderr.splitlines():
        if line.startswith("rollcall: ") and ("not applied" in line or "virtual hosts are only" in line):
            print(line, file=sys.stderr, flush=True)
    return ran


def _read(folder: Path, world_size: int) -> tuple[list[Any], list[str]]:
    """What each rank has left."""
    values: list[Any] = []
    errors: list[str] = []
    for rank in range(world_size):
        path = folder / f"rank-{rank}.json"
        left = json.loads(path.read_text()) if path.exists() else {}
        values.append(left.get("value"))
        errors.append(left.get("error", ""))
    return values, errors


def _failure(ran: "subprocess.CompletedProcess[str]", errors: list[str]) -> RollcallError:
    told = [line.removeprefix("rollcall: ") for line in ran.stderr.splitlines() if line.startswith("rollcall: ")]
    said = next((error for error in errors if error), "") or (told[-1] if told else ran.stderr.strip()[-500:])
    return (UsageError if ran.returncode == _USAGE else RankError)(said or f"rollcall run ended with {ran.returncode}")
