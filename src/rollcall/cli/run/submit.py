"""A run that a scheduler starts: `--slurm` submits a batch job, `--kubernetes` a Job of pods.

The job calls `rollcall run` again, with all options that are not about submitting.
"""

import os
import sys
from pathlib import Path

from rollcall.cli import host_options
from rollcall.cli.run.options import RunOptions, option_name
from rollcall.errors import UsageError, say
from rollcall.protocol.plan import DEFAULT_PORT, Program, check_program
from rollcall.transport import local

_OF_PODS = ("volume", "secret", "shm", "toleration", "priority")
# Options that only a scheduler's job has.
_OF_JOBS = ("nodes", "name", "sbatch_arg", "image", "gpus", "cpu", "memory", "namespace", "workdir", *_OF_PODS)
# Options that are not passed on to the `rollcall run` inside the job: they are used for the job itself.
_ALWAYS = {"slurm", "kubernetes", "dry_run", "nodes", "name", "nproc_per_node", "module", "no_python"}
_BY_SLURM = _ALWAYS | {"sbatch_arg", "python"}
_BY_KUBERNETES = _ALWAYS | {
    "image", "gpus", "cpu", "memory", "namespace", "workdir", "env", "max_restarts", "grace", "master_port",
    *_OF_PODS,
}  # fmt: skip


def check_one_way(options: RunOptions) -> None:
    """A run is started in one way only."""
    if options.slurm and options.kubernetes:
        raise UsageError("--slurm and --kubernetes exclude each other: use one of them")
    names_hosts = options.hosts or options.hostfile or options.virtual_hosts
    if names_hosts and (options.slurm or options.kubernetes):
        way = "--slurm" if options.slurm else "--kubernetes"
        raise UsageError(f"{way} finds the hosts by itself: leave out --hosts, --hostfile and --virtual-hosts")


def check_unused(options: RunOptions) -> None:
    """Refuse options of jobs in a run without a scheduler, which would ignore them."""
    for field in _OF_JOBS:
        if getattr(options, field) != getattr(RunOptions, field):
            name = option_name(field)
            raise UsageError(f"{name} is for runs that a scheduler starts: use it with --slurm or --kubernetes")


def to_slurm(options: RunOptions, program: Program) -> int:
    from rollcall.schedulers import slurm_job, slurm_script  # here: only --slurm needs them

    if "SLURM_JOB_ID" in os.environ:
        raise UsageError(f"this is SLURM job {os.environ['SLURM_JOB_ID']} already: leave --slurm out to use all of it")
    check_program(program, os.getcwd())
    job = slurm_script.SlurmJob(
        name=options.name or Path(program.target).stem,
        nodes=1 if options.nodes is None else options.nodes,
        slots=_number(options.nproc_per_node) if options.nproc_per_node else None,
        arguments=(*options.arguments(without=_BY_SLURM), *program.run_arguments()),
        python=options.python or sys.executable,
        cwd=os.getcwd(),
        log=Path("slurm-%j.out"),
        sbatch_args=(*(["--no-kill"] if options.spares or options.min_hosts else []), *(options.sbatch_arg or ())),
    )
    if options.dry_run:
        print(slurm_script.script(job), end="")
        return 0
    local.end_early()
    return slurm_job.run(job, say)


def to_kubernetes(options: RunOptions, program: Program) -> int:
    from rollcall.schedulers import k8s_job, k8s_manifest  # here: only --kubernetes needs them

    ranks = options.nproc_per_node
    job = k8s_manifest.K8sJob(
        name=options.name or k8s_manifest.name_for(program.target),
        image=options.image,
        nodes=1 if options.nodes is None else options.nodes,
        slots=int(ranks) if ranks.isdecimal() else ranks or 1,
        program=tuple(program.run_arguments()),
        options=tuple(options.arguments(without=_BY_KUBERNETES)),
        env=dict(host_options.forwarded(options.env or [], os.environ)),
        namespace=options.namespace,
        gpus=options.gpus,
        cpu=options.cpu,
        memory=options.memory,
        workdir=options.workdir,
        volumes=tuple(options.volume or ()),
        secrets=tuple(options.secret or ()),
        shm=options.shm,
        tolerations=tuple(options.toleration or ()),
        priority=options.priority,
        max_restarts=options.max_restarts,
        grace_s=options.grace,
        port=options.master_port or DEFAULT_PORT,
    )
    if options.dry_run:
        print(k8s_manifest.manifest(job), end="")
        return 0
    local.end_early()
    return k8s_job.run(job, say)


def _number(ranks: str) -> int:
    if not ranks.isdecimal():
        raise UsageError(f"-n {ranks} is not a number, and the nodes are not known yet: use a number, or leave it out")
    return int(ranks)
