"""What schedulers' environments say, for ranks and for the launcher."""

from collections.abc import Mapping

from rollcall.errors import UsageError

Environ = Mapping[str, str]

# SLURM numbers its own steps (batch script, interactive shell, extern) from here on.
FIRST_SPECIAL_STEP = 0xFFFFFFF0


def read_number(environ: Environ, name: str, base: int = 10) -> int | None:
    if name not in environ:
        return None
    try:
        return int(environ[name], base)
    except ValueError:
        raise UsageError(f"{name} is {environ[name]!r}: expected a number; correct it or unset it") from None


def in_slurm_step(environ: Environ) -> bool:
    """Whether srun started this process; in a batch script or an interactive shell no ranks have been started."""
    if "SLURM_STEP_ID" not in environ or "SLURM_STEP_NUM_TASKS" not in environ:
        return False
    step = read_number(environ, "SLURM_STEP_ID")
    return step is not None and step < FIRST_SPECIAL_STEP


def derive_port(job: str, step: str = "0") -> int:
    """A port that every rank of a job step computes by itself, and that differs between two steps on one host."""
    numbers = [int("".join(filter(str.isdigit, text)) or 0) for text in (job, step)]
    # Above the default port of rollcall.init, and below the ports that Linux hands out by itself (32768 and up).
    return 12_400 + (numbers[0] * 61 + numbers[1]) % 20_000
