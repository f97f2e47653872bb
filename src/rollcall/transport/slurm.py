"""SLURM: in an allocation, one srun starts an agent on each node."""

import os
import socket
from contextlib import AbstractContextManager

from rollcall.errors import UsageError
from rollcall.protocol import host_list
from rollcall.protocol.hosts import Host
from rollcall.protocol.plan import Plan
from rollcall.protocol.scheduler_env import Environ, derive_port, in_slurm_step
from rollcall.transport import connect_back, supervisor_command
from rollcall.transport.connection import StartAgents


def is_in_allocation(environ: Environ) -> bool:
    """Whether nodes are ours to start agents on. In a step of several tasks somebody has started them already."""
    return "SLURM_JOB_ID" in environ and "SLURM_JOB_NODELIST" in environ and not is_in_step(environ)


def is_in_step(environ: Environ) -> bool:
    return in_slurm_step(environ) and environ.get("SLURM_STEP_NUM_TASKS", "1") != "1"


def hosts(environ: Environ, slots: int | None) -> tuple[Host, ...]:
    """The nodes of the allocation, in SLURM's order. Empty if it is this host alone: then no srun is needed."""
    if environ.get("SLURM_HET_SIZE", "1") != "1":
        raise UsageError(
            f"this is a heterogeneous job of {environ['SLURM_HET_SIZE']} components, and a run needs nodes of one kind:"
            f" submit one component, or name hosts with --hosts"
        )
    names = host_list.expand(environ["SLURM_JOB_NODELIST"])
    if len(names) == 1 and names[0] == socket.gethostname().partition(".")[0]:
        return ()
    return tuple(Host(name, n) for name, n in zip(names, _slots(environ, len(names), slots), strict=True))


def own_slots(environ: Environ) -> int:
    """How many ranks fit on this node of the allocation."""
    return _slots(environ, 1, None)[0]


def _slots(environ: Environ, nodes: int, slots: int | None) -> list[int]:
    """All that was allocated: a rank per GPU; else per task, where tasks were asked for; else per CPU."""
    if slots is not None:
        return [slots] * nodes
    if gpus := _gpus(environ):
        return [gpus] * nodes
    name = "SLURM_TASKS_PER_NODE" if "SLURM_NTASKS" in environ else "SLURM_JOB_CPUS_PER_NODE"
    counts = host_list.expand_counts(environ.get(name, f"1(x{nodes})"))
    if len(counts) < nodes:
        raise UsageError(f"{name} is {environ.get(name)}, but the job has {nodes} nodes: say how many ranks with -n")
    return list(counts[:nodes])


def _gpus(environ: Environ) -> int:
    names = ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE")
    value = next((environ[name] for name in names if name in environ), "0")
    return int(value.rpartition(":")[2] or 0) if value.rpartition(":")[2].isdecimal() else 0


def by_hand(environ: Environ) -> tuple[str, int, str, int]:
    """Reads from a step that started us once per node how many we are, which one this is, and where the first one
    is."""
    names = host_list.expand(environ["SLURM_STEP_NODELIST"])
    tasks = int(environ["SLURM_STEP_NUM_TASKS"])
    if tasks != len(names):
        raise UsageError(
            f"srun started `rollcall run` {tasks} times on {len(names)} nodes, but one per node is enough: use"
            f" --ntasks-per-node=1, or leave srun out"
        )
    port = derive_port(environ["SLURM_JOB_ID"], environ["SLURM_STEP_ID"])
    return str(len(names)), int(environ["SLURM_NODEID"]), names[0], port


def opened(plan: Plan, purpose: str) -> AbstractContextManager[StartAgents]:
    """Starts agents on nodes of the allocation."""
    python = plan.transport.python

    def commands(chosen: list[Host]) -> list[list[str]]:
        count = str(len(chosen))
        return [
            [
                "srun",
                f"--nodelist={','.join(host.name for host in chosen)}",
                f"--nodes={count}",
                f"--ntasks={count}",
                "--ntasks-per-node=1",
                "--overlap",  # with the step that we may be in
                "--mem=0",  # all that the job has
                "--cpu-bind=none",
                "--kill-on-bad-exit=0",  # a lost host is ours to judge
                "--wait=0",
                "--input=none",
                *plan.transport.srun_args,  # the last value of an option counts
                *supervisor_command.make(python, purpose),
            ]
        ]

    return connect_back.opened(plan, commands, "SLURMD_NODENAME")


def job_id(environ: Environ = os.environ) -> str | None:
    """The job that this run is part of, and that a requeue continues."""
    return f"slurm {environ['SLURM_JOB_ID']}" if "SLURM_JOB_ID" in environ else None


def has_restarted(environ: Environ = os.environ) -> bool:
    return environ.get("SLURM_RESTART_COUNT", "0") != "0"
