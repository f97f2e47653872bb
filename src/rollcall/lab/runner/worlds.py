"""Starts the ranks of an experiment, forked from a server that has imported torch, or on virtual hosts by
`rollcall run`, and collects the plain values that they return."""

import atexit
import contextlib
import functools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from rollcall.agent.monitoring.hang_detector import HangDetector, newest_ops
from rollcall.agent.monitoring.stack_requests import find_rings
from rollcall.coordinator.run_folder import RunFolder
from rollcall.errors import RankError, RollcallError, UsageError
from rollcall.functions.api import raise_first
from rollcall.functions.pool import FunctionResult, RankPool
from rollcall.lab import NAMES
from rollcall.lab.experiment import Case, Experiment, LabSettings, Results, source_of
from rollcall.lab.runner.on_rank import ATTEMPT, measure_and_record, through_json
from rollcall.lab.runner.on_rank import measure_case as measure_case_on_rank
from rollcall.record import ring_format
from rollcall.runs import rings_of

# Modules that every rank would otherwise import by itself.
_PRELOAD = ("rollcall.initialization.process_group", "rollcall.record.recorder")
_PRELOAD_FOR_DDP = ("torch._dynamo", "torch.nn.parallel")  # imported by the first DDP module: 0.7 s
_servers: list[RankPool] = []  # at most one

_LIMIT_S = 600.0  # for an experiment whose ranks should all return
_LOOK_EVERY_S = 0.1  # at the progress of ranks that may hang
_EXIT_USAGE, _EXIT_HUNG = 2, 124  # exit codes of `rollcall run`
_SOURCE_LINE = re.compile(r"\[/\S+:\d+\] ")  # of gloo's sources, in its messages


def start_server(names: Sequence[str] = NAMES) -> RankPool:
    """The server with what these experiments need; it imports torch in a process of its own, meanwhile."""
    if not _servers:
        uses_ddp = any("DistributedDataParallel" in source_of(name) for name in names)
        _servers.append(RankPool(preload=(*_PRELOAD, *(_PRELOAD_FOR_DDP if uses_ddp else ()))))
        atexit.register(_servers[0].close)
    _servers[0].start()
    return _servers[0]


def measure(experiment: Experiment, settings: LabSettings, folder: Path, is_recorded: bool) -> Results:
    """All ranks measure in one world; if it is to be recorded, they join another one for one more trial."""
    if settings.virtual_hosts:
        ran = _run_on_hosts(experiment, None, settings, folder)
        if ran.returncode:
            raise _failure(ran)
        return _read_values(folder, settings.world_size)
    function = functools.partial(measure_and_record, experiment.name, settings, folder if is_recorded else None)
    answers = start_server().call(function, settings.ranks, timeout_s=_LIMIT_S)
    _raise_first(experiment, answers)
    return through_json([answer.value for answer in answers])


def measure_case(experiment: Experiment, case: Case, settings: LabSettings, folder: Path) -> dict[str, Any]:
    """One case on new ranks, recorded: how it ended, what its ranks returned, and what explain says about it.

    If it may fail, then failing or hanging is a result.
    """
    from rollcall.explain.verdict import explain, to_json  # here: numpy is imported while the ranks' server starts

    folder.mkdir(parents=True, exist_ok=True)
    began_s = time.monotonic()
    start = _start_on_hosts if settings.virtual_hosts or case.virtual_hosts else _start_here
    ended, values, run_folder = start(experiment, case, settings, folder)
    seconds = time.monotonic() - began_s
    explanation = explain(run_folder)
    found, ranks = through_json(to_json(explanation)), explanation.run.ranks
    errors = [first_line(ranks[rank].error) if rank in ranks else "" for rank in range(settings.world_size)]
    if ended != "well" and not case.may_fail:
        why = next((error for error in errors if error), f"it did not end within {case.limit_s:g} s")
        raise RankError(f"{experiment.name}, case {case.name!r}, {ended}: {why}; its recording is in {run_folder}")
    return {
        "ended": ended,  # well, failed or hung
        "values": values,
        "errors": errors,  # by rank; empty without an error
        "seconds": seconds,
        "verdict": found["verdict"],
        "waits": found["waits"],
        "folder": str(run_folder),
    }


def first_line(error: BaseException | str | None) -> str:
    """An error in one line, for a table."""
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}".rstrip(": ")
    return _SOURCE_LINE.sub("", text.partition("\n")[0])


# ---- forked from the server


def _start_here(experiment: Experiment, case: Case, settings: LabSettings, folder: Path) -> tuple[str, list[Any], Path]:
    function = functools.partial(measure_case_on_rank, experiment.name, case.name, settings, folder)
    is_stuck = watch_for_hang(folder, settings.ranks, case.limit_s) if case.may_fail else None
    limit_s = _LIMIT_S if case.may_fail else case.limit_s
    answers = start_server().call(function, settings.ranks, timeout_s=limit_s, capture=True, is_stuck=is_stuck)
    for answer in answers:
        if isinstance(answer.error, UsageError):  # a wrong option is no result of the experiment
            raise answer.error
    has_failed = any(answer.failed for answer in answers)
    ended = "failed" if has_failed else "hung" if any(answer.exit_code is None for answer in answers) else "well"
    _write_run(folder, ended, answers)
    return ended, through_json([answer.value for answer in answers]), folder


def _is_running(pid: int) -> bool:
    """Whether the main thread has a processor, or waits for one or for a disk."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() in (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP)
    return False


def watch_for_hang(
    folder: Path, ranks: int, after_s: float, is_running: Callable[[int], bool] = _is_running
) -> Callable[[], bool]:
    """Whether the ranks make no progress, by the agent's definition of it, from when all have joined the world.

    Joining takes long on a busy machine, and is no deadlock; nor is a rank that waits for a processor.
    """
    watch: HangDetector | None = None
    is_waiting = False

    def is_stuck() -> bool:
        nonlocal watch, is_waiting
        if watch is None and all(_has_joined(folder, rank) for rank in range(ranks)):
            watch = HangDetector(folder, after_s, _LOOK_EVERY_S)
        state = watch.check(ATTEMPT) if watch else None
        is_waiting = is_waiting if state is None else state.is_waiting
        return is_waiting and not any(map(is_running, find_rings(folder, ATTEMPT)))

    return is_stuck


def _has_joined(folder: Path, rank: int) -> bool:
    """Whether a rank has passed the barrier with which every world begins: its second op, after init."""
    ops = newest_ops(rings_of(folder, ATTEMPT) / f"rank-{rank}.ring")
    return len(ops) > 2 or (len(ops) == 2 and not any(ring_format.blocks(ring_format.RECORD.unpack(op)) for op in ops))


def _raise_first(experiment: Experiment, answers: list[FunctionResult]) -> None:
    """Print the traceback of the first rank that failed, and raise one sentence."""
    try:
        raise_first(answers, _LIMIT_S)
    except UsageError:
        raise
    except Exception as error:
        print(*getattr(error, "__notes__", ()), sep="\n", file=sys.stderr, flush=True)
        raise RankError(f"{experiment.name} failed on a rank ({first_line(error)}): see its traceback above") from None


def _write_run(folder: Path, ended: str, answers: list[FunctionResult]) -> None:
    """What explain reads beside the recording: exit codes, and the ranks' output, as `rollcall run` writes them."""
    run = RunFolder(folder, {"attempts": []})
    codes = {str(answer.rank): answer.exit_code for answer in answers if answer.exit_code is not None}
    asked = {str(answer.rank): True for answer in answers if answer.exit_code is None}
    run.note_attempt(ATTEMPT, world_size=len(answers), exit_codes=codes, asked=asked)
    run.save(outcome={"well": "ok", "failed": "failed", "hung": "stopped"}[ended])
    logs = folder / "logs" / f"attempt-{ATTEMPT}"
    logs.mkdir(parents=True, exist_ok=True)
    for answer in answers:
        (logs / f"rank-{answer.rank}.log").write_text(answer.output)


# ---- on virtual hosts


def _start_on_hosts(
    experiment: Experiment, case: Case, settings: LabSettings, folder: Path
) -> tuple[str, list[Any], Path]:
    ran = _run_on_hosts(experiment, case, settings, folder)
    if ran.returncode == _EXIT_USAGE or not (folder / "runs").exists():
        raise _failure(ran)
    ended = {0: "well", _EXIT_HUNG: "hung"}.get(ran.returncode, "failed")
    # A case with hosts of its own spreads `ranks` over them; --virtual-hosts starts `ranks` on each.
    return ended, _read_values(folder, settings.world_size), (folder / "runs" / "latest").resolve()


def _run_on_hosts(
    experiment: Experiment, case: Case | None, settings: LabSettings, folder: Path
) -> "subprocess.CompletedProcess[str]":
    hosts = settings.virtual_hosts or (case.virtual_hosts if case else None) or 1
    per_host = settings.ranks if settings.virtual_hosts else settings.ranks // hosts
    command = [sys.executable, "-m", "rollcall", "run", "--virtual-hosts", str(hosts), "-n", str(per_host)]
    if case is None:
        command += ["--no-record"]  # the ranks record their one extra trial by themselves
    else:
        command += ["--hang-after", str(case.limit_s), "--on-hang", "stop", "--grace", "1"]
        command += ["--link", case.link] if case.link else []
    command += ["-m", "rollcall", "lab", experiment.name, "--trials", str(settings.trials), "--results", str(folder)]
    command += ["--backend", settings.backend] if settings.backend else []
    command += ["--case", case.name] if case else []
    for name, value in settings.options.items():
        command += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    env = {**os.environ, "ROLLCALL_DIR": str(folder)}
    ran = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    for line in ran.stderr.splitlines():
        if line.startswith("rollcall: ") and ("not applied" in line or "virtual hosts are only" in line):
            print(line, file=sys.stderr, flush=True)
    return ran


def _read_values(folder: Path, world_size: int) -> list[Any]:
    """What each rank has written; None of a rank that did not come that far."""
    paths = [folder / f"rank-{rank}.json" for rank in range(world_size)]
    return [json.loads(path.read_text()) if path.exists() else None for path in paths]


def _failure(ran: "subprocess.CompletedProcess[str]") -> RollcallError:
    messages = [line.removeprefix("rollcall: ") for line in ran.stderr.splitlines() if line.startswith("rollcall: ")]
    why = (
        messages[-1] if messages else ran.stderr.strip()[-500:] or f"rollcall run ended with exit code {ran.returncode}"
    )
    return (UsageError if ran.returncode == _EXIT_USAGE else RankError)(why)
