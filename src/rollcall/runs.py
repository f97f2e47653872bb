"""The folders of runs: finds a run, and reads its run.json. It imports little, since every command needs it."""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from rollcall import run_json
from rollcall.errors import UsageError

SOURCES = "sources"  # beside the rings: the files of the program, as they were
DUMPS = "flight-recorder"  # in a run's folder: where torch's Flight Recorder writes its dumps
STACKS = "stacks"  # in a run's folder: requests for the stacks of its ranks, and the answers
TRAINING = "training.json"  # in a run's folder: the progress of its Trainer
REQUESTS = "requests"  # in a run's folder: other requests to its ranks, and terminals of debuggers
GPU_SAMPLES = "gpus-{host}.jsonl"  # beside the rings: what the GPUs of a host did
NCCL_RAS = "nccl-ras-{host}.txt"  # beside the rings: the answer of NCCL's RAS service while the run hung
WATCHED = "watched"  # in a run's folder: `rollcall watch` touches it at each update


def runs_home(environ: Mapping[str, str] = os.environ) -> Path:
    """$ROLLCALL_DIR, or .rollcall in this folder; the runs are below it."""
    return Path(environ.get("ROLLCALL_DIR", ".rollcall")).absolute() / "runs"


def read_facts(folder: Path) -> dict[str, Any]:
    """The fields of run.json that have the expected types; empty if the file is missing or damaged."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        facts = json.loads((folder / "run.json").read_text())
        return run_json.understood(facts) if isinstance(facts, dict) else {}
    return {}


def facts_of_attempt(facts: dict[str, Any], attempt: int) -> dict[str, Any]:
    """The part of run.json about one attempt; empty if there is none."""
    attempts = facts.get("attempts") or []
    return attempts[attempt] if 0 <= attempt < len(attempts) else {}


def is_over(facts: dict[str, Any]) -> bool:
    """Whether a run has an outcome, or its launcher is gone: then its folder no longer changes."""
    if facts.get("outcome", "running") != "running":
        return True
    pid = facts.get("launcher_pid")
    is_here = facts.get("host") == os.uname().nodename
    return bool(pid) and is_here and not os.path.exists(f"/proc/{pid}")


def recorded_attempts(folder: Path) -> list[int]:
    """The attempts that have rings."""
    return sorted(ring_folders(folder))


def ring_folders(folder: Path) -> dict[int, Path]:
    """The folder with the rings of each attempt. `folder` is that of a run, or a copied part of it: the folder with
    the attempts, or the rings alone."""
    for place in (folder / "rings", folder):
        found = {_attempt_in(path.name): path for path in place.glob("attempt-*") if path.is_dir()}
        if found := {number: path for number, path in found.items() if number is not None}:
            return found
    if any(folder.glob("*.ring")):
        return {_attempt_in(folder.name) or 0: folder}
    return {}


def rings_of(folder: Path, attempt: int) -> Path:
    """Where the rings of an attempt are, in the folder of a run."""
    return folder / "rings" / f"attempt-{attempt}"


def rank_rings(folder: Path, attempt: int) -> list[Path]:
    """The rings of an attempt that ranks have opened until now."""
    return sorted(rings_of(folder, attempt).glob("rank-*.ring"))


def _attempt_in(name: str) -> int | None:
    number = name.removeprefix("attempt-")
    return int(number) if number.isdecimal() and name.startswith("attempt-") else None


def stored_source_name(file: str) -> str:
    """The name of the copy of a program's file, beside the rings; empty if it would be too long."""
    name = quote(os.fsencode(file), safe="") + ".py"  # a name of Linux need not be text
    return name if len(name) <= _MOST_NAME else ""


def stored_source_file(name: str) -> str:
    return os.fsdecode(unquote_to_bytes(name.removesuffix(".py")))


_MOST_NAME = 240  # file systems allow 255, and a copy has a longer name while it is made


def all_runs() -> Iterator[dict[str, Any]]:
    """The facts of every run of this folder, oldest first, with its name."""
    for path in sorted(runs_home().glob("*/run.json")):
        if not path.parent.is_symlink() and (facts := read_facts(path.parent)):
            yield {"name": path.parent.name, **facts}


def folder_of(run_id: str) -> Path:
    """The folder of the newest run of this id."""
    for facts in reversed(list(all_runs())):
        if (facts.get("plan") or {}).get("run_id") == run_id:
            return runs_home() / str(facts["name"])
    raise UsageError(f"no run {run_id} was begun in {runs_home()}")


def find_run(name: str | None, home: Path | None = None) -> Path:
    """The folder of a run: by its name, by a path, or the newest."""
    home = home or runs_home()
    candidates = [Path(name), home / name] if name else [home / "latest"]
    for path in candidates:
        if (path / "run.json").exists() or (path / "rings").exists():
            return path.resolve()
    if name is None:
        raise UsageError("no run here yet: start one with `rollcall run -n 2 SCRIPT`, or name the folder of one")
    if Path(name).is_dir():
        raise UsageError(f"{name} is not the folder of a run: there is no run.json in it, and no folder of rings")
    known = sorted(path.name for path in home.glob("*") if path.is_dir() and not path.is_symlink())[-3:]
    hint = f"; the newest here are {', '.join(known)}" if known else ""
    raise UsageError(f"there is no run {name}: `rollcall runs` lists those of this folder{hint}")


def find_recording(name: str | None, home: Path | None = None) -> Path:
    """A run, or any path: rings that were copied from elsewhere, dumps of torch's Flight Recorder."""
    try:
        return find_run(name, home)
    except UsageError:
        if name and Path(name).exists():
            return Path(name).resolve()
        raise
