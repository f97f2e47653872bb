"""Which launcher started this process, and which rank it is: the only reader of launchers' environments.

One table per launcher; the environment is passed in. What a launcher does not say stays None: the roll call
finds it out from the hosts of all ranks.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rollcall.errors import UsageError
from rollcall.initialization.placement import locate, place_by_host
from rollcall.protocol import host_list, torchrun_env
from rollcall.protocol.scheduler_env import Environ, derive_port, in_slurm_step, read_number

# Where the launcher names no address. Torchrun has a default port of its own: protocol/plan.py.
FALLBACK_ADDR = "localhost"
FALLBACK_PORT = 12356

BY_HAND = {key: torchrun_env.NUMBERS[key] for key in ("rank", "world_size", "local_rank", "local_world_size")}
# The variables of the step: those of the allocation (SLURM_NTASKS …) are also set in a batch script, where
# no ranks have been started yet.
SLURM = {
    "rank": "SLURM_PROCID",
    "world_size": "SLURM_STEP_NUM_TASKS",
    "local_rank": "SLURM_LOCALID",
    "node_rank": "SLURM_NODEID",
}
OPEN_MPI = {
    "rank": "OMPI_COMM_WORLD_RANK",
    "world_size": "OMPI_COMM_WORLD_SIZE",
    "local_rank": "OMPI_COMM_WORLD_LOCAL_RANK",
    "local_world_size": "OMPI_COMM_WORLD_LOCAL_SIZE",
}


@dataclass(frozen=True)
class RankAssignment:
    """The numbers and the address that a launcher gave this process."""

    launcher: str
    rank: int
    world_size: int
    local_rank: int | None = None
    local_world_size: int | None = None
    node_rank: int | None = None
    nnodes: int | None = None
    master_addr: str = FALLBACK_ADDR
    master_port: int = FALLBACK_PORT
    hosts: tuple[str, ...] = ()  # by node rank, where the launcher lists them
    ranks_per_host: tuple[int, ...] = ()
    agent_store: bool = False  # an elastic agent already serves a store at the master address
    attempt: int = 0

    def listed_host(self, rank: int) -> str | None:
        """The host of a rank by the launcher's list, if there is one."""
        if not self.hosts or not self.ranks_per_host:
            return None
        return self.hosts[locate(rank, self.ranks_per_host)[0]]


def find_assignment(
    environ: Environ,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    master_addr: str | None = None,
    master_port: int | None = None,
    spawn_index: int | None = None,
    count_gpus: Callable[[], int] = lambda: 0,
) -> RankAssignment:
    """Arguments come first, then the innermost launcher that set its variables; without either, a world of one."""
    found = _apply_arguments(environ, rank, world_size, spawn_index, count_gpus)
    env_addr, env_port = environ.get(torchrun_env.MASTER_ADDR), read_number(environ, torchrun_env.MASTER_PORT)
    addr = master_addr or env_addr or found.master_addr
    port = master_port if master_port is not None else env_port
    # The agent's store is at the agent's address only: an argument may name another.
    agent_store = environ.get(torchrun_env.AGENT_STORE) == "True" and (addr, port) == (env_addr, env_port)
    assignment = replace(
        found,
        master_addr=addr,
        master_port=found.master_port if port is None else port,
        agent_store=agent_store,
        attempt=read_number(environ, torchrun_env.ATTEMPT) or 0,
    )
    _check(assignment)
    return assignment


def find_spawn_index() -> int | None:
    """The index that torch.multiprocessing.spawn gave this process; only a local variable on the stack holds it."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "_wrap" and frame.f_globals.get("__name__") == "torch.multiprocessing.spawn":
            index = frame.f_locals.get("i")
            return index if isinstance(index, int) else None
        frame = frame.f_back  # type: ignore[assignment]
    return None


def find_launched_rank(environ: Environ, spawn_index: int | None = None) -> int:
    """The rank alone, for a process without a group; 0 where no launcher gave one."""
    if spawn_index is None and "RANK" not in environ and "WORLD_SIZE" in environ:
        return 0  # the parent of mp.spawn, most likely: WORLD_SIZE is meant for its children
    # Any world size above the index will do.
    return find_assignment(environ, spawn_index=spawn_index, count_gpus=lambda: (spawn_index or 0) + 1).rank


def is_ours(environ: Environ) -> bool:
    """Whether `rollcall run` started this process, and so prefixes each line with its rank."""
    return "ROLLCALL_RUN" in environ


def wants_recording(environ: Environ) -> bool:
    """Whether this process is to be recorded: ROLLCALL_RECORD is 1, or the folder to record into."""
    return environ.get("ROLLCALL_RECORD", "0") not in ("", "0")


def name_gpus(environ: Environ, count: int) -> tuple[str, ...]:
    """The host's own names of the GPUs that this process sees, without initialising CUDA.

    Two ranks may both see a `cuda:0`, and it may or may not be the same GPU.
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    names = [name.strip() for name in visible.split(",")] if visible else []
    return tuple(names[index] if index < len(names) else str(index) for index in range(count))


def _apply_arguments(
    environ: Environ,
    rank: int | None,
    world_size: int | None,
    spawn_index: int | None,
    count_gpus: Callable[[], int],
) -> RankAssignment:
    try:
        found = _detect(environ, rank, world_size, spawn_index, count_gpus)
    except UsageError:
        if rank is None or world_size is None:
            raise
        # A broken environment does not matter if both are passed.
        return RankAssignment("arguments", rank, world_size, local_rank=spawn_index)
    if rank in (None, found.rank) and world_size in (None, found.world_size):
        return found
    if rank is not None and world_size is not None:
        return RankAssignment("arguments", rank, world_size, local_rank=spawn_index)
    if found.launcher == "alone":
        passed, missing = (f"rank={rank}", "world_size") if world_size is None else (f"world_size={world_size}", "rank")
        raise UsageError(f"{passed} was passed without {missing}: pass both, or neither")
    if rank is not None:
        return RankAssignment("arguments", rank, found.world_size, local_rank=spawn_index)
    raise UsageError(
        f"world_size={world_size} was passed, but {found.launcher} started {found.world_size} ranks: "
        "leave the argument out, or pass rank too"
    )


def _detect(
    environ: Environ,
    rank: int | None,
    world_size: int | None,
    spawn_index: int | None,
    count_gpus: Callable[[], int],
) -> RankAssignment:
    if is_ours(environ) and "RANK" in environ:
        return _from_table("rollcall", torchrun_env.NUMBERS, environ)
    if torchrun_env.RUN_ID in environ:
        return _from_table("torchrun", torchrun_env.NUMBERS, environ)
    if spawn_index is not None:
        return _from_spawn(environ, spawn_index, world_size, count_gpus)
    # Open MPI comes before the schedulers: its mpirun starts its daemons by srun or by PBS, and their
    # variables, one task per host, leak into its ranks.
    if "OMPI_COMM_WORLD_RANK" in environ or "OMPI_COMM_WORLD_SIZE" in environ:
        return _from_open_mpi(environ)
    if in_slurm_step(environ):
        return _from_slurm(environ)
    if _in_pbs_task(environ):
        return _from_pbs(environ, world_size)
    if "RANK" in environ or "WORLD_SIZE" in environ:
        return _set_by_hand(environ, rank, world_size)
    return RankAssignment("alone", 0, 1, 0, 1, 0, 1)


def _from_table(launcher: str, table: Mapping[str, str], environ: Environ) -> RankAssignment:
    missing = [table[key] for key in ("rank", "world_size") if table[key] not in environ]
    if missing:
        present = next((name for name in table.values() if name in environ), "its variables")
        raise UsageError(
            f"{launcher} left {present} in the environment, but no {' and no '.join(missing)}: "
            f"start the program by {launcher} again, or unset {present}"
        )
    return RankAssignment(launcher, **{key: read_number(environ, name) for key, name in table.items()})  # type: ignore[arg-type]


def _from_spawn(environ: Environ, index: int, world_size: int | None, count_gpus: Callable[[], int]) -> RankAssignment:
    size = world_size or read_number(environ, "WORLD_SIZE") or count_gpus()
    if not size:
        raise UsageError(
            f"mp.spawn started this process as number {index} and does not say of how many, and there is no "
            "GPU to count: pass world_size to rollcall.init"
        )
    return RankAssignment("mp.spawn", index, size, local_rank=index)


def _set_by_hand(environ: Environ, rank: int | None, world_size: int | None) -> RankAssignment:
    given = {key: read_number(environ, name) for key, name in BY_HAND.items() if name in environ}
    given |= {key: value for key, value in (("rank", rank), ("world_size", world_size)) if value is not None}
    for missing, present in (("rank", "world_size"), ("world_size", "rank")):
        if missing not in given:
            raise UsageError(
                f"{BY_HAND[present]} is {given[present]}, but {BY_HAND[missing]} is not set: "
                "set both, or neither for a world of one"
            )
    return RankAssignment("by hand", **given)  # type: ignore[arg-type]


def _from_slurm(environ: Environ) -> RankAssignment:
    task = _from_table("SLURM", SLURM, environ)
    counts = host_list.expand_counts(environ.get("SLURM_STEP_TASKS_PER_NODE", str(task.world_size)))
    hosts = host_list.expand(environ.get("SLURM_STEP_NODELIST", FALLBACK_ADDR))
    if len(hosts) != len(counts) or sum(counts) != task.world_size:
        raise UsageError(
            f"SLURM's step lists {len(hosts)} hosts with {counts} tasks, but {task.world_size} tasks "
            "in all: pass rank and world_size to rollcall.init"
        )
    node_rank = task.node_rank or 0
    if not 0 <= node_rank < len(hosts):
        raise UsageError(f"SLURM_NODEID is {node_rank}, but the step has {len(hosts)} hosts: start it by srun again")
    port = derive_port(environ.get("SLURM_JOB_ID", ""), environ["SLURM_STEP_ID"])
    return _on_hosts(replace(task, local_world_size=counts[node_rank], nnodes=len(hosts)), hosts, counts, port)


def _on_hosts(task: RankAssignment, hosts: tuple[str, ...], counts: tuple[int, ...], port: int) -> RankAssignment:
    """Adds the scheduler's list of hosts, of which the first is the master."""
    addr = hosts[0] if len(hosts) > 1 else FALLBACK_ADDR
    return replace(task, master_addr=addr, master_port=port, hosts=hosts, ranks_per_host=counts)


def _in_pbs_task(environ: Environ) -> bool:
    """Whether pbsdsh started this process. Task 1 is the job's own shell, where no ranks have been started yet."""
    if "PBS_JOBID" not in environ or "PBS_NODENUM" not in environ:
        return False
    # PBS writes the number of the task in hexadecimal digits.
    return (read_number(environ, "PBS_TASKNUM", base=16) or 1) > 1


def _from_pbs(environ: Environ, world_size: int | None) -> RankAssignment:
    lines = _read_nodefile(environ)
    hosts = tuple(dict.fromkeys(lines))
    counts = tuple(lines.count(host) for host in hosts)
    if lines and "PBS_VNODENUM" in environ:
        task = _from_torque(environ, lines)
    else:
        task = _from_pbs_professional(environ, counts, world_size)
    return _on_hosts(task, hosts, counts, derive_port(environ["PBS_JOBID"]))


def _from_torque(environ: Environ, lines: list[str]) -> RankAssignment:
    """Torque says which line of the node file this task is."""
    rank = read_number(environ, "PBS_VNODENUM") or 0
    if rank >= len(lines):
        raise UsageError(f"PBS_VNODENUM is {rank}, but PBS_NODEFILE has {len(lines)} lines: pass rank to rollcall.init")
    placement = place_by_host(lines)[rank]
    return RankAssignment("PBS", rank, len(lines), **asdict(placement))


def _from_pbs_professional(environ: Environ, counts: tuple[int, ...], world_size: int | None) -> RankAssignment:
    """PBS Professional says on which host this task is, and not which task of this host it is."""
    if max(counts, default=1) > 1:
        raise UsageError(
            f"PBS does not say which of the {max(counts)} tasks of its host this one is: "
            "use one task per host (mpiprocs=1), or pass rank and world_size to rollcall.init"
        )
    size = world_size or read_number(environ, "WORLD_SIZE") or len(counts)
    if not size:
        raise UsageError(
            "PBS started this task, but PBS_NODEFILE cannot be read here, so the number of hosts is not "
            "known: pass world_size and master_addr to rollcall.init"
        )
    node_rank = read_number(environ, "PBS_NODENUM") or 0
    return RankAssignment("PBS", node_rank, size, 0, 1, node_rank, size)


def _read_nodefile(environ: Environ) -> list[str]:
    try:
        return Path(environ["PBS_NODEFILE"]).read_text().split()
    except (KeyError, OSError):  # it is written on the job's first host only
        return []


def _from_open_mpi(environ: Environ) -> RankAssignment:
    found = _from_table("Open MPI", OPEN_MPI, environ)
    one_host = found.local_world_size == found.world_size
    if not one_host and torchrun_env.MASTER_ADDR not in environ:
        raise UsageError(
            f"Open MPI started {found.world_size} ranks on several hosts and does not say where rank 0 is: "
            "add `-x MASTER_ADDR=<host of rank 0>` to mpirun"
        )
    job = environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid") or ""
    port = derive_port(job) if job else FALLBACK_PORT
    return replace(found, node_rank=0 if one_host else None, nnodes=1 if one_host else None, master_port=port)


def _check(assignment: RankAssignment) -> None:
    passed = assignment.launcher in ("arguments", "alone")
    source = "as passed" if passed else f"according to {assignment.launcher}"
    pairs = (("rank", "world_size"), ("local_rank", "local_world_size"), ("node_rank", "nnodes"))
    for name, size_name in pairs:
        number, size = getattr(assignment, name), getattr(assignment, size_name)
        if number is not None and number < 0:
            raise UsageError(f"{name} is {number}, {source}: ranks are counted from 0")
        if size is not None and size < 1:
            raise UsageError(f"{size_name} is {size}, {source}: expected 1 or more")
        if number is not None and size is not None and number >= size:
            raise UsageError(
                f"{name} is {number}, but {size_name} is {size}, {source}: "
                f"use a {name} from 0 to {size - 1}, or a larger {size_name}"
            )
    if assignment.local_world_size is not None and assignment.local_world_size > assignment.world_size:
        raise UsageError(
            f"local_world_size is {assignment.local_world_size}, but world_size is {assignment.world_size}, {source}: "
            "all ranks of a host are ranks of the world too"
        )
    if not 0 < assignment.master_port < 2**16:
        raise UsageError(f"master_port is {assignment.master_port}: use a number from 1 to 65535")
