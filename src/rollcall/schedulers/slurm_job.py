"""Submits a run as a SLURM job, shows its log as it grows, and reports how it ended."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rollcall.errors import RollcallError, UsageError
from rollcall.linux.signals import received as interrupts
from rollcall.linux.standard_streams import discard_broken_output
from rollcall.schedulers.slurm_script import SlurmJob, script
from rollcall.schedulers.slurm_state import (
    FORGOTTEN,
    SlurmState,
    describe_end,
    describe_progress,
    read,
    read_accounting,
    read_json,
)

_TICK_S = 0.1
_SHORTEST_POLL_S, _LONGEST_POLL_S = 0.5, 10.0  # between two requests: the controller serves many users
_BACKOFF = 0.1  # of the time since the last change: after a minute, a request every six seconds
_QUIET_S = 1.0  # without a new line, once the job is over: NFS may deliver its last output late
_LATE_LOG_S = 10.0  # without a log, once the job is over
_CHUNK_BYTES = 1 << 20

Tell = Callable[[str], None]


def run(job: SlurmJob, tell: Tell) -> int:
    """Submit the job and follow it to its end; the exit code is the job's."""
    text = script(job)
    if interrupts:
        return 128 + interrupts.pop(0)
    path = Path(job.cwd, job.log)
    _make_folder(path.parent)
    old_bytes = path.stat().st_size if path.exists() else 0  # the output of an earlier job, where the name has no %j
    number = _submit(text)
    log = LogTail(Path(str(path).replace("%j", number)), old_bytes)
    return _SlurmFollower(number, job, log, tell).follow()


def _make_folder(folder: Path) -> None:
    """sbatch does not make it, and a job whose log cannot be opened fails without a message."""
    if "%" not in str(folder):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"the log's folder {folder} cannot be made ({error.strerror}): choose another") from error


# ---- SLURM's commands


def _start(command: list[str]) -> "subprocess.Popen[str]":
    pipe = subprocess.PIPE
    # A session of its own: Ctrl-C in the terminal must reach rollcall alone.
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def _submit(text: str) -> str:
    """Give the script to sbatch; returns the job's number."""
    try:
        with _start(["sbatch", "--parsable"]) as process:
            out, err = process.communicate(text)
    except OSError as error:
        raise UsageError(
            f"--slurm needs sbatch, which does not start ({error.strerror}): run it on a login node of the cluster, or"
            f" print the script with --dry-run and submit it there"
        ) from error
    number = out.strip().partition(";")[0]
    if process.returncode != 0 or not number.isdecimal():
        raise _refusal(err)
    return number


# The first pattern that matches what sbatch prints.
_REFUSALS = (
    (
        r"contact slurm controller|configuration source|connection refused|timed out",
        "SLURM does not answer ({said}), nothing was submitted: check with `sinfo`, and try again when it is back",
    ),
    (
        r"partition",
        "sbatch refuses the partition ({said}), nothing was submitted: `sinfo` lists those there are, choose one with"
        " --sbatch-arg=--partition=NAME",
    ),
    (
        r"account|qos",
        "sbatch refuses the account ({said}), nothing was submitted: `sacctmgr show associations user=$USER` lists"
        " yours, choose one with --sbatch-arg=--account=NAME",
    ),
    ("", "sbatch refuses the job ({said}), nothing was submitted: check --nodes, -n and each --sbatch-arg"),
)


def _refusal(err: str) -> UsageError:
    said = _first_error(err)
    advice = next(advice for pattern, advice in _REFUSALS if re.search(pattern, said, re.IGNORECASE))
    return UsageError(advice.format(said=said))


def _first_error(err: str) -> str:
    """The first line that is an error; some sites print a greeting before it."""
    lines = [line.strip() for line in err.splitlines() if line.strip()] or ["no reason given"]
    first = next((line for line in lines if re.search(r"error|fatal|invalid|unrecognized", line)), lines[0])
    return re.sub(r"^\w+(: | (?=error: ))(error: |fatal: )?", "", first).rstrip(".")


def _cancel(number: str, *options: str) -> str | None:
    """Ask SLURM to end the job; returns the error, if there is one."""
    with _start(["scancel", *options, number]) as process:
        _, err = process.communicate()
    return _first_error(err) if process.returncode != 0 and "Invalid job id" not in err else None


class JobPoller:
    """Runs `scontrol show job` repeatedly, without waiting for it: without a controller it takes a minute."""

    def __init__(self, number: str) -> None:
        self._number = number
        self._asking: subprocess.Popen[str] | None = None
        self._takes_json = True  # SLURM 23.02 and newer, if it was built with it
        self._next_s = self._changed_s = time.monotonic()

    def poll_soon(self) -> None:
        """Something has changed: ask more often for a while."""
        self._next_s = self._changed_s = time.monotonic()

    def poll(self) -> SlurmState | RollcallError | None:
        """The state, if the last request has just been answered."""
        now = time.monotonic()
        if self._asking is None and now >= self._next_s:
            self._asking = _start(["scontrol", *["--json"] * self._takes_json, "show", "job", self._number])
        if self._asking is None or self._asking.poll() is None:
            return None
        self._next_s = now + min(max(_BACKOFF * (now - self._changed_s), _SHORTEST_POLL_S), _LONGEST_POLL_S)
        with self._asking as asked:
            out, err = asked.communicate()
        self._asking = None
        if self._takes_json and "Invalid job id" not in err:
            state = read_json(out) if asked.returncode == 0 else None
            self._takes_json = state is not None
            self._next_s = self._next_s if state is not None else now  # ask again, for text
            return state
        if asked.returncode == 0:
            return read(out)
        return self._ask_accounting() if "Invalid job id" in err else RollcallError(_first_error(err))

    def _ask_accounting(self) -> SlurmState:
        """The state in SLURM's accounting, if accounting is on."""
        command = ["sacct", f"--jobs={self._number}", "--allocations", "--noheader", "--parsable2"]
        with contextlib.suppress(OSError), _start([*command, "--format=State,ExitCode"]) as process:
            out, _ = process.communicate()
            if state := read_accounting(out):
                return state
        return FORGOTTEN

    def close(self) -> None:
        if self._asking is not None:
            with self._asking as asked:
                asked.kill()


class LogTail:
    """Shows a growing file in whole lines, so that rollcall's own lines come between them."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self._offset = offset
        self._rest = b""

    def show(self) -> bool:
        """Show new lines; returns whether there was new text."""
        new = self._new()
        if new:
            lines, newline, self._rest = (self._rest + new).rpartition(b"\n")
            _write(lines + newline)
        return bool(new)

    def finish(self) -> None:
        """Show the rest, including a last line without its end."""
        quiet_since_s = time.monotonic()
        while not interrupts:
            now_s = time.monotonic()
            if self.show():
                quiet_since_s = now_s
            elif now_s - quiet_since_s > (_QUIET_S if self.path.exists() else _LATE_LOG_S):
                break
            else:
                time.sleep(_TICK_S)
        _write(self._rest)
        self._rest = b""

    def _new(self) -> bytes:
        # Opened again each time: only then does NFS ask the server for the current size.
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._offset:  # the user has asked for --open-mode=truncate
                    self._offset = 0
                file.seek(self._offset)
                new = file.read(_CHUNK_BYTES)
        except OSError:  # it does not exist yet, or its disk cannot be reached for a moment
            return b""
        self._offset += len(new)
        return new


def _write(data: bytes) -> None:
    if data:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


class _SlurmFollower:
    """Follows a submitted job to its end."""

    def __init__(self, number: str, job: SlurmJob, log: LogTail, tell: Tell) -> None:
        self._number, self._job, self._log, self._tell = number, job, log, tell
        self._poller = JobPoller(number)
        self._state: SlurmState | None = None
        self._last_sentence: str | None = None
        self._stopped_by: int | None = None
        self._has_run = False
        self._controller_lost = False

    def follow(self) -> int:
        self._tell(f"job {self._number} is submitted: {self._job.size}; its log is {_short(self._log.path)}")
        try:
            while self._state is None or not self._state.is_over:
                while interrupts:
                    if not self._on_signal(interrupts.pop(0)):
                        return 128 + (self._stopped_by or 0)
                self._catch_broken_pipe(self._step)
            return self._finish(self._state)
        finally:
            self._poller.close()

    def _step(self) -> None:
        if not self._log.show():
            time.sleep(_TICK_S)
        match self._poller.poll():
            case SlurmState() as state:
                self._on_state(state)
            # A lost controller must not end a training of many days.
            case RollcallError() as error if not self._controller_lost:
                self._controller_lost = True
                self._tell(f"SLURM does not answer ({error}); job {self._number} may still run; rollcall keeps asking")

    def _catch_broken_pipe(self, step: Callable[[], None]) -> None:
        try:
            step()
        except BrokenPipeError:  # `rollcall run … | head` has closed the pipe
            discard_broken_output()
            if self._stopped_by is None and not interrupts:  # Ctrl-C has ended the reader too
                interrupts.append(signal.SIGPIPE)

    # ---- states

    def _on_state(self, state: SlurmState) -> None:
        before, self._state, self._controller_lost = self._state, state, False
        self._find_log(state)
        self._has_run = self._has_run or bool(state.nodes)
        if before is None or state.name != before.name or state.restarts != before.restarts:
            self._poller.poll_soon()
        if state.restarts > (before.restarts if before else 0) and not state.is_over:
            self._last_sentence = None
            self._tell(f"job {self._number} was requeued: waiting for its next start")
        sentence = None if state.is_over else describe_progress(self._number, state)
        if sentence is not None and sentence != self._last_sentence:
            self._last_sentence = sentence
            self._tell(sentence)

    def _find_log(self, state: SlurmState) -> None:
        path = Path(state.log.replace("%j", self._number))
        if state.log and path != self._log.path:  # --sbatch-arg=--output=…
            self._log.path = path
            self._tell(f"job {self._number} has its log in {_short(path)}")

    # ---- signals

    def _on_signal(self, number: int) -> bool:
        """Returns whether to keep following the job."""
        again, self._stopped_by = self._stopped_by is not None, self._stopped_by or number
        if number == signal.SIGHUP:
            # A batch job must survive a lost connection to the login node.
            if not again:
                self._tell(f"the terminal is gone; job {self._number} continues (`scancel {self._number}` ends it)")
            return False
        why_not = _cancel(self._number, *(["--signal=KILL"] if again else []))
        if why_not is not None:
            self._tell(f"job {self._number} could not be cancelled ({why_not}): `scancel {self._number}` does it later")
        elif again:
            self._tell(f"job {self._number} is killed; its log is {_short(self._log.path)}")
        else:
            self._tell(f"interrupted: job {self._number} is cancelled (Ctrl-C again: kill it without waiting)")
        self._poller.poll_soon()
        return why_not is None and not again

    # ---- the end

    def _finish(self, state: SlurmState) -> int:
        if self._has_run and not state.lacks_log:
            self._catch_broken_pipe(self._log.finish)
            if not self._log.path.exists():
                self._tell(f"the log {_short(self._log.path)} did not appear here: use a folder that the nodes share")
        if self._stopped_by is not None:
            self._tell(f"job {self._number} is over")
            return 128 + self._stopped_by
        self._tell(describe_end(self._number, state))
        return state.exit_code


def _short(path: Path) -> str:
    """Relative, if it is below the current folder."""
    with contextlib.suppress(ValueError, OSError):
        return str(path.relative_to(Path.cwd()))
    return str(path)
