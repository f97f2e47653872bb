"""A run that a scheduler starts for us: `--slurm` submits a batch job, `--kubernetes` a Job of pods.

There `rollcall run` is called again, with all the options that are not about the submitting.
"""

import os
import sys
from dataclasses import dataclass, fields
from pathlib import Path

from rollcall.cli import host_options
from rollcall.coordinator import early_agent
from rollcall.errors import UsageError, say
from rollcall.protocol.plan import Program, check_program

_FLAGS = {"--slurm", "--kubernetes", "--dry-run"}
_ALWAYS = {"--nodes", "--name", "--nproc-per-node", "-n"}
_OF_SLURM = {"--sbatch-arg", "--python"}
_OF_KUBERNETES = {
    "--image",
    "--gpus",
    "--cpu",
    "--memory",
    "--namespace",
    "--workdir",
    "--env",
    "--max-restarts",
    "--shutdown-timeout",
    "--grace",
    "--master-port",
}


@dataclass(frozen=True)
class Wishes:
    """What the user asks of a scheduler; empty where nothing was said."""

    nodes: int | None = None
    name: str = ""
    sbatch_args: tuple[str, ...] = ()
    image: str = ""
    gpus: int = 0
    cpu: str | None = None
    memory: str | None = None
    namespace: str | None = None
    workdir: str | None = None

    def check_unused(self) -> None:
        """Where no scheduler is asked, all of this would be passed over."""
        for field in fields(self):
            if getattr(self, field.name) != field.default:
                name = "sbatch-arg" if field.name == "sbatch_args" else field.name
                raise UsageError(f"--{name} is for runs that a scheduler starts: use it with --slurm or --kubernetes")


def check_one_way(*, slurm: bool, kubernetes: bool, hosts: object) -> None:
    """A run goes one way only."""
    if slurm and kubernetes:
        raise UsageError("--slurm and --kubernetes exclude each other: use one of them")
    if hosts and (slurm or kubernetes):
        way = "--slurm" if slurm else "--kubernetes"
        raise UsageError(f"{way} finds the hosts by itself: leave out --hosts, --hostfile and --virtual-hosts")


def submit_to_slurm(wishes: Wishes, program: Program, ranks: str, python: str, words: list[str], dry_run: bool) -> int:
    from rollcall.schedulers import slurm_job, slurm_script

    if "SLURM_JOB_ID" in os.environ:
        raise UsageError(f"this is SLURM job {os.environ['SLURM_JOB_ID']} already: leave --slurm out to use all of it")
    check_program(program, os.getcwd())
    kept = without(words, _FLAGS, _ALWAYS | _OF_SLURM)
    job = slurm_script.SlurmJob(
        name=wishes.name or Path(program.target).stem,
        nodes=1 if wishes.nodes is None else wishes.nodes,
        slots=_number(ranks) if ranks else None,
        words=(*kept, *program.words()[_flag_words(program) :]),
        python=python or sys.executable,
        cwd=os.getcwd(),
        log=Path("slurm-%j.out"),
        sbatch_args=wishes.sbatch_args,
    )
    if dry_run:
        print(slurm_script.script(job), end="")
        return 0
    early_agent.abandon()
    return slurm_job.run(job, say)


def submit_to_kubernetes(
    wishes: Wishes,
    program: Program,
    ranks: str,
    env: list[str],
    words: list[str],
    dry_run: bool,
    *,
    max_restarts: int,
    grace_s: float,
    port: int,
) -> int:
    from rollcall.schedulers import k8s_job, k8s_manifest

    kept = without(words, _FLAGS, _ALWAYS | _OF_KUBERNETES)
    job = k8s_manifest.K8sJob(
        name=wishes.name or k8s_manifest.name_for(program.target),
        image=wishes.image,
        nodes=1 if wishes.nodes is None else wishes.nodes,
        slots=int(ranks) if ranks.isdecimal() else ranks or 1,
        words=tuple(program.words()[_flag_words(program) :]),
        options=tuple(kept),
        env=dict(host_options.forwarded(env, os.environ)),
        namespace=wishes.namespace,
        gpus=wishes.gpus,
        cpu=wishes.cpu,
        memory=wishes.memory,
        workdir=wishes.workdir,
        max_restarts=max_restarts,
        grace_s=grace_s,
        port=port,
    )
    if dry_run:
        print(k8s_manifest.manifest(job), end="")
        return 0
    early_agent.abandon()
    return k8s_job.run(job, say)


def options_of(argv: list[str], program: Program) -> list[str]:
    """The options of a command line, as they were typed between `run` and the program."""
    return argv[2 : len(argv) - 1 - len(program.args)]


def without(words: list[str], flags: set[str], valued: set[str]) -> list[str]:
    """The words less some options, with their values."""
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        name, equals, _ = word.partition("=")
        name = name.replace("_", "-") if name.startswith("--") else name
        if name in flags or (name[:2] in valued and len(name) > 2 and name[1] != "-"):  # -n4
            continue
        if name in valued:
            if not equals:
                next(rest, None)
            continue
        kept.append(word)
    return kept


def _flag_words(program: Program) -> int:
    """-m and --no-python stand among the options already."""
    return 0 if program.kind == "script" else 1


def _number(ranks: str) -> int:
    if not ranks.isdecimal():
        raise UsageError(f"-n {ranks} is not a number, and the nodes are not known yet: use a number, or leave it out")
    return int(ranks)
