"""The batch script of a run, as text: `--dry-run` prints it, and slurm_job.py submits it."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from rollcall.errors import UsageError
from rollcall.units import plural

# Options that would make something else than one job that can be followed.
_REFUSED = {
    "--array": "it makes many jobs, and a run is one: start each with its own `rollcall run`",
    "--clusters": "only jobs of this cluster can be followed: run it on a login node of the other",
    "--wait": "rollcall waits for the job anyway: leave it out",
}
_SHORT = {"-a": "--array", "-M": "--clusters", "-W": "--wait"}
_PLAIN = re.compile(r"[\w@%+=:,./-]+", re.ASCII)


@dataclass(frozen=True)
class SlurmJob:
    """One run as a batch job. `arguments` follow `rollcall run` in the script: options and program."""

    name: str
    nodes: int
    slots: int | None  # ranks per node; None: as transport/slurm.py counts them in the allocation
    arguments: tuple[str, ...]
    python: str
    cwd: str
    log: Path  # as `sbatch --output` takes it: %j is the job's number
    sbatch_args: tuple[str, ...] = ()

    @property
    def size(self) -> str:
        """Nodes and ranks in words."""
        nodes = plural(self.nodes, "node")
        if self.slots is None:
            return nodes
        return f"{nodes} with {plural(self.slots, 'rank')}{' each' * (self.nodes > 1)}"


def check(job: SlurmJob) -> SlurmJob:
    """The job, if a script can be made of it."""
    if job.nodes < 1:
        raise UsageError(f"--nodes {job.nodes} leaves no host to run on: use 1 or more")
    if job.slots is not None and job.slots < 1:
        raise UsageError(f"-n {job.slots} leaves no rank to run: use 1 or more")
    for option, text in (("--name", job.name), ("the log", str(job.log))):
        if not text or not text.isprintable():
            raise UsageError(f"{option} {text!r} cannot be written into a batch script: use printable characters")
    for argument in job.sbatch_args:
        _check_argument(argument)
    return job


def _check_argument(argument: str) -> None:
    if not argument.startswith("-"):
        raise UsageError(
            f"--sbatch-arg {argument} is no option of sbatch: write it with its dashes, as in"
            f" --sbatch-arg=--partition=gpu"
        )
    if not argument.isprintable():
        raise UsageError(f"--sbatch-arg {argument!r} has more than one line: give each option an --sbatch-arg")
    option = argument.split("=")[0].split(" ")[0]
    if why := _REFUSED.get(_SHORT.get(argument[:2], option)):
        raise UsageError(f"--sbatch-arg {argument} cannot be used here: {why}")


def script(job: SlurmJob) -> str:
    """A batch script for `sbatch FILE`, made to be read and changed."""
    check(job)
    tasks = [] if job.slots is None else [f"--ntasks-per-node={job.slots}"]
    options = [
        f"--job-name={_quoted(job.name)}",
        f"--nodes={job.nodes}",
        *tasks,
        f"--output={_quoted(str(Path(job.cwd, job.log)))}",
        "--open-mode=append",  # a requeued job continues the same file
        "--requeue",
        *job.sbatch_args,  # the last value of an option counts
    ]
    return "\n".join(
        [
            "#!/bin/bash",
            f"# {' '.join(shlex.join(job.arguments).split())} on {job.size}",
            "# Made by rollcall. Submit it with `sbatch FILE`.",
            *(f"#SBATCH {option}" for option in options),
            "",
            # Where the folder is missing, SLURM would run the script in /tmp.
            f"cd {shlex.quote(job.cwd)} || exit",
            f"exec {shlex.join(_command(job))}",
            "",
        ]
    )


def _command(job: SlurmJob) -> list[str]:
    # -n is repeated here: without it, the number of GPUs would count where there are any, not that of the tasks.
    ranks = [] if job.slots is None else ["-n", str(job.slots)]
    # -P: a file in the folder must not shadow a module that the launcher imports.
    return [job.python, "-P", "-m", "rollcall", "run", *ranks, *job.arguments]


def _quoted(text: str) -> str:
    """Quotes one word of an #SBATCH line, whose quoting is simpler than a shell's."""
    if _PLAIN.fullmatch(text):
        return text
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'
