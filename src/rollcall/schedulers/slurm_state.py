"""The state of a SLURM job: read from what `scontrol show job` prints, and described in words."""

import json
import re
from dataclasses import dataclass
from typing import Any

from rollcall.protocol.exit_codes import how_it_ended

_WAITING = {"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
_PROGRESS = {
    "CONFIGURING": "has its nodes, which are being prepared",
    "SUSPENDED": "is suspended",
    "STOPPED": "is stopped",
    "STAGE_OUT": "is over, and its files are being copied back",
}
_ENDINGS = {
    "COMPLETED": "is done",
    "FAILED": "failed",  # followed by the reason, if SLURM gives one
    "CANCELLED": "was cancelled by somebody else",
    "TIMEOUT": "took longer than its time limit: ask for more with --sbatch-arg=--time=HOURS:MINUTES:SECONDS",
    "OUT_OF_MEMORY": "ran out of the memory it had asked for: ask for more with --sbatch-arg=--mem=SIZE (per node)",
    "NODE_FAIL": "was ended because one of its nodes failed",
    "PREEMPTED": "had to make room for another job, and was not requeued",
    "BOOT_FAIL": "could not begin: its nodes did not boot",
    "LAUNCH_FAILED": "could not begin: SLURM could not start it on its nodes",
    "DEADLINE": "was ended at its deadline",
    "REVOKED": "was taken over by another cluster",
    "FORGOTTEN": "is gone, and SLURM no longer knows how it ended: see its log",
}
_REASONS = {
    "Resources": "waits for free nodes",
    "Priority": "waits for jobs of higher priority",
    "Dependency": "waits for another job",
    "DependencyNeverSatisfied": "waits for another job that failed, and cannot start",
    "BeginTime": "waits for the time at which it may begin",
    "JobHeldUser": "is held: `scontrol release {job}` releases it",
    "JobHeldAdmin": "is held by an administrator",
    "Licenses": "waits for a licence",
    "Reservation": "waits for its reservation to begin",
    "ReqNodeNotAvail": "waits for nodes that are down or reserved",
    "PartitionDown": "waits for its partition, which is down",
    "PartitionInactive": "waits for its partition, which is inactive",
    "PartitionNodeLimit": "asks for more nodes than its partition gives to one job, and cannot start as it is",
    "PartitionTimeLimit": "asks for more time than its partition gives to one job, and cannot start as it is",
    "BadConstraints": "asks for nodes that do not exist, and cannot start as it is",
}
# What a job is beside its state, in the order in which `scontrol` without --json shows them instead of it.
_FLAGS = (
    "COMPLETING", "STAGE_OUT", "CONFIGURING", "RESIZING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT",
    "STOPPED", "REVOKED", "RESV_DEL_HOLD", "SIGNALING",
)  # fmt: skip
_LIMITS = re.compile(r"(QOS|Assoc|Max|InvalidQOS|InvalidAccount)")
_NO_LOG = 53  # the "signal" by which slurmd says that it could not open the output file
_NOTHING = ("None", "(null)", "")


@dataclass(frozen=True)
class SlurmState:
    """A job at one moment, by SLURM's own names."""

    name: str  # JobState
    reason: str = "None"
    restarts: int = 0
    code: int = 0
    signal: int = 0
    nodes: str = ""
    log: str = ""

    @property
    def is_waiting(self) -> bool:
        return self.name in _WAITING

    @property
    def is_running(self) -> bool:
        return self.name == "RUNNING"

    @property
    def is_over(self) -> bool:
        return self.name in _ENDINGS

    @property
    def lacks_log(self) -> bool:
        """The nodes could not open its output file."""
        return self.name == "FAILED" and self.signal == _NO_LOG

    @property
    def exit_code(self) -> int:
        """Returns the exit code as a shell reports it; never 0 for a job that did not succeed."""
        if self.name == "COMPLETED":
            return 0
        if self.name == "FAILED" and not self.lacks_log:
            return 128 + self.signal if self.signal else self.code or 1
        return 1  # it was ended from outside, so that its own code says nothing


# SLURM forgets a job some minutes after its end: this machine may have been suspended meanwhile.
FORGOTTEN = SlurmState("FORGOTTEN")


def read_json(text: str) -> SlurmState | None:
    """From what `scontrol --json show job ID` prints, whose fields have changed with SLURM's versions. None if they are
    not as known, or if only `scontrol` without --json tells the name of the log."""
    try:
        (job,) = json.loads(text)["jobs"]
        ended = job["exit_code"]
        signal = ended.get("signal") or {}
        log = job.get("stdout_expanded") or re.sub("%[jA]", str(job["job_id"]), job["standard_output"])
        if "%" in log:
            return None
        return SlurmState(
            _name(job["job_state"]),
            job["state_reason"] or "None",
            _number(job["restart_cnt"]),
            _number(ended["return_code"]),
            _number(signal.get("id", signal.get("signal_id"))),
            job["nodes"] or "",
            log,
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _name(state: str | list[str]) -> str:
    """A word before SLURM 23.11, the state and its flags since."""
    words = [state] if isinstance(state, str) else state
    return next((flag for flag in _FLAGS if flag in words), words[0])


def _number(value: Any) -> int:
    """A plain number, or one that may be unset."""
    return int((value.get("number") if isinstance(value, dict) else value) or 0)


def read(text: str) -> SlurmState:
    """Parses what `scontrol show job ID` prints. Matched at line starts: names and comments may contain any text."""

    def find(pattern: str) -> tuple[str, ...]:
        match = re.search(rf"^ +{pattern}", text, re.MULTILINE)
        return match.groups("") if match else ("",) * re.compile(pattern).groups

    name, reason = find(r"JobState=(\S+) Reason=(\S+)")
    restarts, code, signal = find(r"Requeue=\d+ Restarts=(\d+).* ExitCode=(\d+):(\d+)")
    (nodes,) = find(r"NodeList=(\S*)")
    (log,) = find(r"StdOut=(.*)")
    return SlurmState(
        name or "UNKNOWN",
        reason or "None",
        int(restarts or 0),
        int(code or 0),
        int(signal or 0),
        "" if nodes in _NOTHING else nodes,
        log,
    )


def read_accounting(text: str) -> SlurmState | None:
    """Parses what `sacct --parsable2 --format=State,ExitCode` prints, for a job that scontrol has forgotten."""
    match = re.match(r"([A-Z_]+)[^|]*\|(\d+):(\d+)", text)
    return SlurmState(match[1], code=int(match[2]), signal=int(match[3])) if match else None


def describe_progress(job: str, state: SlurmState) -> str | None:
    """What the job is doing while it is not over; None where SLURM gives no reason."""
    if state.is_waiting:
        return None if state.reason in _NOTHING else f"job {job} {_describe_reason(job, state.reason)}"
    if state.is_running:
        return f"job {job} runs on {state.nodes}"
    return f"job {job} {_PROGRESS[state.name]}" if state.name in _PROGRESS else None


def _describe_reason(job: str, reason: str) -> str:
    kind = reason.partition(",")[0]  # `ReqNodeNotAvail,_UnavailableNodes:h3`
    if kind in _REASONS:
        return f"{_REASONS[kind].format(job=job)} ({reason})"
    if _LIMITS.match(kind):
        return f"waits for a limit of your account or partition ({reason})"
    return f"waits ({reason})"


def describe_end(job: str, state: SlurmState) -> str:
    """How a job ended."""
    if state.lacks_log:
        return f"job {job} could not begin: its nodes could not open the log {state.log}: use a folder they share"
    if state.name == "FAILED" and (state.signal or state.code):
        return f"job {job} {how_it_ended(-state.signal or state.code)}"
    why = f" ({state.reason})" if state.name == "FAILED" and state.reason not in _NOTHING else ""
    return f"job {job} {_ENDINGS[state.name]}{why}"
