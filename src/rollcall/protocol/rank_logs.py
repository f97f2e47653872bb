"""Where the output of each rank goes: launcher and agent both name these files."""

from dataclasses import dataclass
from pathlib import Path

from rollcall.protocol.plan import Plan


@dataclass(frozen=True)
class RankLogs:
    """Where one rank's output of one attempt goes."""

    stdout: Path
    stderr: Path
    error: Path  # where @record of torch elastic would leave its traceback

    @classmethod
    def of(cls, plan: Plan, folder: Path, attempt: int, rank: int, local_rank: int) -> "RankLogs":
        error = folder / "errors" / f"attempt-{attempt}" / f"rank-{rank}.json"
        error.parent.mkdir(parents=True, exist_ok=True)
        if plan.log_dir is None:
            log = folder / "logs" / f"attempt-{attempt}" / f"rank-{rank}.log"
            return cls(log, log, error)
        # torchrun's layout, for those who have scripts that look for it
        place = Path(plan.cwd, plan.log_dir, plan.run_id, f"attempt_{attempt}", str(local_rank))
        return cls(place / "stdout.log", place / "stderr.log", error)
