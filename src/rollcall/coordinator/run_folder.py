"""The folder of a run: what was planned, what each rank printed, how it ended."""

import contextlib
import json
import os
import platform
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rollcall import __version__
from rollcall.errors import UsageError, say
from rollcall.protocol.messages import File
from rollcall.protocol.plan import Plan
from rollcall.runs import all_runs, facts_of_attempt, runs_home
from rollcall.torch_version import torch_version

_MOST_OF_ONE_SECOND = 1000
_MOST_PROBED = 16


class RunFolder:
    """A run's folder and its run.json, which is rewritten during the run."""

    def __init__(self, path: Path, facts: dict[str, Any]) -> None:
        self.path = path
        self._facts = facts

    @classmethod
    def begin(cls, plan: Plan, command: list[str]) -> tuple[Plan, "RunFolder"]:
        """A new folder; or, where a scheduler has started the same job again, the job's, for its next attempt."""
        if "SLURM_JOB_ID" not in os.environ:
            return plan, cls.create(plan, command)
        from rollcall.transport import slurm  # here: most runs are in no job

        job = slurm.job_id(os.environ) if plan.by_hand is None else None
        if job is not None and slurm.has_restarted(os.environ):
            for facts in all_runs():
                if facts.get("job") == job and facts["command"] == command:
                    attempt = len(facts["attempts"])
                    say(f"the job was started again: continuing with attempt {attempt} in {facts['name']}")
                    return replace(plan, first_attempt=attempt), cls._reopen(facts)
        folder = cls.create(plan, command)
        if job is not None:
            folder.save(job=job)
        return plan, folder

    @classmethod
    def _reopen(cls, facts: dict[str, Any]) -> "RunFolder":
        path = runs_home() / facts.pop("name")
        for key in ("seconds", "exit_code"):
            facts.pop(key, None)
        folder = cls(path, facts)
        folder.save(outcome="running", launcher_pid=os.getpid(), host=platform.node())
        _point_latest_to(path)
        return folder

    @classmethod
    def create(cls, plan: Plan, command: list[str]) -> "RunFolder":
        now = _now()
        try:
            path = _make_new(_stem(plan), now)
            if plan.log_dir is not None:
                _check_writable(Path(plan.cwd, plan.log_dir))
        except OSError as error:
            raise UsageError(
                f"cannot write to {error.filename} ({error.strerror}):"
                f" choose another folder with --log-dir or $ROLLCALL_DIR"
            ) from error
        folder = cls._started(
            path,
            now,
            command,
            # The last two for those who read run.json as it was before.
            plan={**plan.to_dict(), "slots": plan.slots, "nnodes": plan.by_hand.nnodes if plan.by_hand else 1},
            versions={"rollcall": __version__, "torch": torch_version(), "python": platform.python_version()},
        )
        _point_latest_to(path)
        return folder

    @classmethod
    def create_for_command(cls, command: list[str], out: Path | None) -> "RunFolder":
        """Creates the folder for ranks that another launcher starts: a run of this folder, or the new folder `out`."""
        now = _now()
        try:
            if out is None:
                path = _make_new(Path(command[0]).stem, now)
                _point_latest_to(path)
            else:
                path = out.absolute()
                path.mkdir(parents=True)
        except FileExistsError as error:
            raise UsageError(f"{out} exists already, and may hold another recording: name a new folder") from error
        except OSError as error:
            raise UsageError(f"cannot write to {error.filename} ({error.strerror}): choose another folder") from error
        return cls._started(path, now, command, recorded_by="rollcall record")

    @classmethod
    def _started(cls, path: Path, now: datetime, command: list[str], **more: Any) -> "RunFolder":
        facts = {
            "command": command,
            "started": now.isoformat(timespec="seconds"),
            **more,
            "host": platform.node(),
            "launcher_pid": os.getpid(),
            "attempts": [],
            "outcome": "running",
        }
        folder = cls(path, facts)
        folder.save()
        return folder

    def note_attempt(self, number: int, **facts: Any) -> None:
        """Add facts to one attempt."""
        attempts = self._facts["attempts"]
        while len(attempts) <= number:
            attempts.append({"attempt": len(attempts), "pids": {}, "exit_codes": {}})
        for key, value in facts.items():
            if isinstance(value, dict):
                attempts[number].setdefault(key, {}).update(value)
            else:
                attempts[number][key] = value

    def verdicts(self, before: int) -> dict[int, dict[str, Any]]:
        """By attempt: the verdicts on those before this one that hung."""
        attempts = self._facts["attempts"][:before]
        return {number: each["verdict"] for number, each in enumerate(attempts) if each.get("verdict")}

    def who_runs(self, attempt: int) -> dict[str, Any]:
        """The ranks of an attempt, by host, and the exit codes of those that have ended."""
        facts = facts_of_attempt(self._facts, attempt)
        return {"hosts": facts.get("hosts", {}), "exit_codes": facts.get("exit_codes", {})}

    def take(self, file: File) -> None:
        """Add what a host without our disk sent: only inside this folder, whatever the path says."""
        target = (self.path / file.path).resolve()
        if target.is_relative_to(self.path.resolve()):
            with contextlib.suppress(OSError):
                target.parent.mkdir(parents=True, exist_ok=True)
                with open(os.open(target, os.O_WRONLY | os.O_CREAT, 0o644), "wb") as out:
                    out.seek(file.at)
                    out.write(file.data)

    def addresses(self) -> dict[str, str]:
        """Lists the hosts that take part, if there are several; of very many, the first few."""
        hosts = list(self._facts.get("hosts", {}).items())
        return {name: facts["address"] for name, facts in hosts[:_MOST_PROBED] if facts.get("address")}

    def note_unreachable(self, attempt: int, host: str, others: list[str]) -> None:
        """While the run stood still, this host could not reach these."""
        if others:
            self.note_attempt(attempt, unreachable={host: others})
            self.save()

    def note_clocks(self, readings: dict[str, list[tuple[int, int, int]]]) -> None:
        """Note the clock readings of the hosts that took part."""
        for name, host in self._facts.get("hosts", {}).items():
            host["clock_readings"] = readings.get(name, [])

    def save(self, **facts: Any) -> None:
        self._facts.update(facts)
        # Replaced as a whole: other processes read it during the run.
        fresh = self.path / "run.json.new"
        with contextlib.suppress(OSError):  # a full disk is no reason to end the run
            fresh.write_text(json.dumps(self._facts, indent=2) + "\n")
            fresh.replace(self.path / "run.json")


def _now() -> datetime:
    return datetime.now(UTC).astimezone()


def _stem(plan: Plan) -> str:
    return Path(plan.program.target).stem if plan.program.kind == "script" else plan.program.target


def _file_name(text: str) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in text)[:40] or "run"


def _make_new(stem: str, now: datetime) -> Path:
    """The folder of a new run. Two runs may start in the same second."""
    parent, name = runs_home(), f"{now:%Y-%m-%dT%H-%M-%S}-{_file_name(stem)}"
    parent.mkdir(parents=True, exist_ok=True)
    for number in range(_MOST_OF_ONE_SECOND):
        path = parent / (f"{name}-{number}" if number else name)
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise UsageError(f"{parent} already has {_MOST_OF_ONE_SECOND} runs named {name}: something starts runs in a loop")


def _check_writable(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / f".rollcall-{os.getpid()}"
    probe.touch()
    probe.unlink()


def _point_latest_to(path: Path) -> None:
    fresh = path.parent / f".latest-{os.getpid()}"
    with contextlib.suppress(OSError):
        fresh.symlink_to(path.name)
        fresh.replace(path.parent / "latest")


def command_line() -> list[str]:
    """What the user typed."""
    return [Path(sys.argv[0]).name, *sys.argv[1:]]
