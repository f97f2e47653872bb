"""Who started this process, and which rank it is: the only reader of launcher environments.

One table per launcher; the environment is passed in. What a launcher does not say stays None: the roll call
(attendance.py) finds it out from the hosts of all ranks.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rollcall.errors import UsageError
from rollcall.protocol import host_list
from rollcall.world import locate

Environ = Mapping[str, str]

DEFAULT_ADDR = "localhost"
DEFAULT_PORT = 12356

# Torchrun's variables; ours are the same, plus ROLLCALL_RUN, the folder of the run.
TORCHRUN = {
    "rank": "RANK",
    "world_size": "WORLD_SIZE",
    "local_rank": "LOCAL_RANK",
    "local_world_size": "LOCAL_WORLD_SIZE",
    "node_rank": "GROUP_RANK",
    "nnodes": "GROUP_WORLD_SIZE",
}
BY_HAND = {
    "rank": "RANK",
    "world_size": "WORLD_SIZE",
    "local_rank": "LOCAL_RANK",
    "local_world_size": "LOCAL_WORLD_SIZE",
}
# The variables of the step: those of the allocation (SLURM_NTASKS …) are there in a batch script too, where
# nobody has started ranks yet.
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
# SLURM numbers its own steps (batch script, interactive shell, extern) from here on.
FIRST_SPECIAL_STEP = 0xFFFFFFF0


@dataclass(frozen=True)
class Place:
    """Where this process stands in its world, and who put it there."""

    launcher: str
    rank: int
    world_size: int
    local_rank: int | None = None
    local_world_size: int | None = None
    node_rank: int | None = None
    nnodes: int | None = None
    master_addr: str = DEFAULT_ADDR
    master_port: int = DEFAULT_PORT
    hosts: tuple[str, ...] = ()  # by node rank, where the launcher lists them
    ranks_per_host: tuple[int, ...] = ()
    agent_store: bool = False  # an elastic agent already serves a store at the master address
    attempt: int = 0


def find_place(
    environ: Environ,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    master_addr: str | None = None,
    master_port: int | None = None,
    spawn_index: int | None = None,
    count_gpus: Callable[[], int] = lambda: 0,
) -> Place:
    """Arguments first, then the innermost launcher that left its mark; else a world of one."""
    place = _weigh_arguments(environ, rank, world_size, spawn_index, count_gpus)
    port = master_port if master_port is not None else _read(environ, "MASTER_PORT")
    addr = master_addr or environ.get("MASTER_ADDR") or place.master_addr
    # The agent serves its own address and no other that somebody may pass.
    agent = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    at_agent = agent and addr == environ.get("MASTER_ADDR") and port == _read(environ, "MASTER_PORT")
    place = replace(
        place,
        master_addr=addr,
        master_port=place.master_port if port is None else port,
        agent_store=at_agent,
        attempt=_read(environ, "TORCHELASTIC_RESTART_COUNT") or 0,
    )
    _check(place)
    return place


def find_spawn_index() -> int | None:
    """The index that torch.multiprocessing.spawn gave this process; it stands nowhere but on the stack."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "_wrap" and frame.f_globals.get("__name__") == "torch.multiprocessing.spawn":
            index = frame.f_locals.get("i")
            return index if isinstance(index, int) else None
        frame = frame.f_back  # type: ignore[assignment]
    return None


def find_rank(environ: Environ, spawn_index: int | None = None) -> int:
    """The rank alone, for one who has no group yet and asks for nothing else; 0 where nobody gave one."""
    if spawn_index is None and "RANK" not in environ and "WORLD_SIZE" in environ:
        return 0  # the parent of mp.spawn, most likely: WORLD_SIZE is meant for its children
    # Any size that holds the rank will do.
    return find_place(environ, spawn_index=spawn_index, count_gpus=lambda: (spawn_index or 0) + 1).rank


def is_ours(environ: Environ) -> bool:
    """Whether `rollcall run` started this process, and so prefixes each line with its rank."""
    return "ROLLCALL_RUN" in environ


def wants_recording(environ: Environ) -> bool:
    """`rollcall run` says so to interpreters that it does not record by itself."""
    return environ.get("ROLLCALL_RECORD") == "1"


def name_gpus(environ: Environ, count: int) -> tuple[str, ...]:
    """The host's own names of the GPUs that this process sees, without waking CUDA up.

    Two ranks may both see a `cuda:0`, and it may or may not be the same GPU.
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    names = [name.strip() for name in visible.split(",")] if visible else []
    return tuple(names[index] if index < len(names) else str(index) for index in range(count))


def has_own_gpus(environ: Environ) -> bool:
    """Whether somebody chose the GPUs of this process: perhaps another choice for each rank."""
    return bool(environ.get("CUDA_VISIBLE_DEVICES"))


def _weigh_arguments(
    environ: Environ,
    rank: int | None,
    world_size: int | None,
    spawn_index: int | None,
    count_gpus: Callable[[], int],
) -> Place:
    def detect() -> Place:
        return _detect(environ, rank, world_size, spawn_index, count_gpus)

    if rank is not None and world_size is not None:
        try:
            found = detect()
        except UsageError:  # a broken environment does not matter to one who passes everything
            found = Place("arguments", rank, world_size)
        if (found.rank, found.world_size) == (rank, world_size):
            return found
        return Place("arguments", rank, world_size, local_rank=spawn_index)
    found = detect()
    if rank is not None and rank != found.rank:
        if found.launcher == "alone":
            raise UsageError(f"rank={rank} was passed without world_size: pass both, or neither")
        return Place("arguments", rank, found.world_size, local_rank=spawn_index)
    if world_size is not None and world_size != found.world_size:
        if found.launcher == "alone":
            raise UsageError(f"world_size={world_size} was passed without rank: pass both, or neither")
        raise UsageError(
            f"world_size={world_size} was passed, but {found.launcher} started {found.world_size} ranks: "
            "leave the argument out, or pass rank too"
        )
    return found


def _detect(
    environ: Environ,
    rank: int | None,
    world_size: int | None,
    spawn_index: int | None,
    count_gpus: Callable[[], int],
) -> Place:
    if is_ours(environ) and "RANK" in environ:
        return _from_table("rollcall", TORCHRUN, environ)
    if "TORCHELASTIC_RUN_ID" in environ:
        return _from_table("torchrun", TORCHRUN, environ)
    if spawn_index is not None:
        return _from_spawn(environ, spawn_index, world_size, count_gpus)
    # Open MPI stands before the schedulers: its mpirun starts its daemons by srun or by PBS, and their
    # variables, one task per host, leak into its ranks.
    if "OMPI_COMM_WORLD_RANK" in environ or "OMPI_COMM_WORLD_SIZE" in environ:
        return _from_open_mpi(environ)
    if in_slurm_step(environ):
        return _from_slurm(environ)
    if _in_pbs_task(environ):
        return _from_pbs(environ, world_size)
    if "RANK" in environ or "WORLD_SIZE" in environ:
        return _from_hand(environ, rank, world_size)
    return Place("alone", 0, 1, 0, 1, 0, 1)


def _from_table(launcher: str, table: Mapping[str, str], environ: Environ) -> Place:
    missing = [table[key] for key in ("rank", "world_size") if table[key] not in environ]
    if missing:
        there = next((name for name in table.values() if name in environ), "its mark")
        raise UsageError(
            f"{launcher} left {there} in the environment, but no {' and no '.join(missing)}: "
            f"start the program by {launcher} again, or unset {there}"
        )
    return Place(launcher, **{key: _read(environ, name) for key, name in table.items()})  # type: ignore[arg-type]


def _from_spawn(environ: Environ, index: int, world_size: int | None, count_gpus: Callable[[], int]) -> Place:
    size = world_size or _read(environ, "WORLD_SIZE") or count_gpus()
    if not size:
        raise UsageError(
            f"mp.spawn started this process as number {index} and does not say of how many, and there is no "
            "GPU to count: pass world_size to rollcall.init"
        )
    return Place("mp.spawn", index, size, local_rank=index)


def _from_hand(environ: Environ, rank: int | None, world_size: int | None) -> Place:
    if rank is None and "RANK" not in environ:
        raise UsageError(
            f"WORLD_SIZE is {environ['WORLD_SIZE']}, but RANK is not set: set both, or neither for a world of one"
        )
    if world_size is None and "WORLD_SIZE" not in environ:
        raise UsageError(
            f"RANK is {environ['RANK']}, but WORLD_SIZE is not set: set both, or neither for a world of one"
        )
    given = {key: _read(environ, name) for key, name in BY_HAND.items() if name in environ}
    if rank is not None:
        given["rank"] = rank
    if world_size is not None:
        given["world_size"] = world_size
    return Place("by hand", **given)  # type: ignore[arg-type]


def in_slurm_step(environ: Environ) -> bool:
    if "SLURM_STEP_ID" not in environ or "SLURM_STEP_NUM_TASKS" not in environ:
        return False
    step = _read(environ, "SLURM_STEP_ID")
    return step is not None and step < FIRST_SPECIAL_STEP


def _from_slurm(environ: Environ) -> Place:
    place = _from_table("SLURM", SLURM, environ)
    counts = host_list.expand_counts(environ.get("SLURM_STEP_TASKS_PER_NODE", str(place.world_size)))
    hosts = host_list.expand(environ.get("SLURM_STEP_NODELIST", DEFAULT_ADDR))
    if len(hosts) != len(counts) or sum(counts) != place.world_size:
        raise UsageError(
            f"SLURM's step lists {len(hosts)} hosts with {counts} tasks, but {place.world_size} tasks "
            "in all: pass rank and world_size to rollcall.init"
        )
    node_rank = place.node_rank or 0
    if not 0 <= node_rank < len(hosts):
        raise UsageError(f"SLURM_NODEID is {node_rank}, but the step has {len(hosts)} hosts: start it by srun again")
    return replace(
        place,
        local_world_size=counts[node_rank],
        nnodes=len(hosts),
        hosts=hosts,
        ranks_per_host=counts,
        master_addr=hosts[0] if len(hosts) > 1 else DEFAULT_ADDR,
        master_port=derive_port(environ.get("SLURM_JOB_ID", ""), environ["SLURM_STEP_ID"]),
    )


def _in_pbs_task(environ: Environ) -> bool:
    """Whether pbsdsh started us. Task 1 is the job's own shell, where nobody has started ranks yet."""
    if "PBS_JOBID" not in environ or "PBS_NODENUM" not in environ:
        return False
    # PBS writes the number of the task in hexadecimal digits.
    return (_read(environ, "PBS_TASKNUM", base=16) or 1) > 1


def _from_pbs(environ: Environ, world_size: int | None) -> Place:
    lines = _read_nodefile(environ)
    hosts = tuple(dict.fromkeys(lines))
    counts = tuple(lines.count(host) for host in hosts)
    port = derive_port(environ["PBS_JOBID"])
    if lines and "PBS_VNODENUM" in environ:  # Torque says which line of the file we are
        rank = _read(environ, "PBS_VNODENUM") or 0
        if rank >= len(lines):
            raise UsageError(
                f"PBS_VNODENUM is {rank}, but PBS_NODEFILE has {len(lines)} lines: pass rank to rollcall.init"
            )
        node_rank = hosts.index(lines[rank])
        local_rank = lines[:rank].count(lines[rank])
        return Place(
            *("PBS", rank, len(lines), local_rank, counts[node_rank], node_rank, len(hosts)),
            master_addr=hosts[0] if len(hosts) > 1 else DEFAULT_ADDR,
            master_port=port,
            hosts=hosts,
            ranks_per_host=counts,
        )
    # PBS Professional says which host we are on, and not which task of this host.
    if max(counts, default=1) > 1:
        raise UsageError(
            f"PBS does not say which of the {max(counts)} tasks of its host this one is: "
            "use one task per host (mpiprocs=1), or pass rank and world_size to rollcall.init"
        )
    size = world_size or _read(environ, "WORLD_SIZE") or len(hosts)
    if not size:
        raise UsageError(
            "PBS started this task, but PBS_NODEFILE is not to be read here, so the number of hosts is not "
            "known: pass world_size and master_addr to rollcall.init"
        )
    node_rank = _read(environ, "PBS_NODENUM") or 0
    return Place(
        *("PBS", node_rank, size, 0, 1, node_rank, size),
        master_addr=hosts[0] if len(hosts) > 1 else DEFAULT_ADDR,
        master_port=port,
        hosts=hosts,
        ranks_per_host=counts,
    )


def _read_nodefile(environ: Environ) -> list[str]:
    try:
        return Path(environ["PBS_NODEFILE"]).read_text().split()
    except (KeyError, OSError):  # it is written on the job's first host only
        return []


def _from_open_mpi(environ: Environ) -> Place:
    place = _from_table("Open MPI", OPEN_MPI, environ)
    one_host = place.local_world_size == place.world_size
    if not one_host and "MASTER_ADDR" not in environ:
        raise UsageError(
            f"Open MPI started {place.world_size} ranks on several hosts and does not say where rank 0 is: "
            "add `-x MASTER_ADDR=<host of rank 0>` to mpirun"
        )
    job = environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid") or ""
    return replace(
        place,
        node_rank=0 if one_host else None,
        nnodes=1 if one_host else None,
        master_port=derive_port(job) if job else DEFAULT_PORT,
    )


def derive_port(job: str, step: str = "0") -> int:
    """A port that all ranks of a job step find alone, and that two steps on one host do not share."""
    numbers = [int("".join(filter(str.isdigit, text)) or 0) for text in (job, step)]
    # Below the ports that Linux hands out by itself (32768 and up), above the origin's default.
    return 12_400 + (numbers[0] * 61 + numbers[1]) % 20_000


def _read(environ: Environ, name: str, base: int = 10) -> int | None:
    if name not in environ:
        return None
    try:
        return int(environ[name], base)
    except ValueError:
        raise UsageError(f"{name} is {environ[name]!r}: expected a number; correct it or unset it") from None


def _check(place: Place) -> None:
    said = f"as {place.launcher} has it" if place.launcher not in ("arguments", "alone") else "as passed"
    for name in ("rank", "local_rank", "node_rank"):
        if (getattr(place, name) or 0) < 0:
            raise UsageError(f"{name} is {getattr(place, name)}, {said}: ranks are counted from 0")
    for name in ("world_size", "local_world_size", "nnodes"):
        value = getattr(place, name)
        if value is not None and value < 1:
            raise UsageError(f"{name} is {value}, {said}: expected 1 or more")
    pairs = (("rank", "world_size"), ("local_rank", "local_world_size"), ("node_rank", "nnodes"))
    for number, size in pairs:
        n, of = getattr(place, number), getattr(place, size)
        if n is not None and of is not None and n >= of:
            raise UsageError(
                f"{number} is {n}, but {size} is {of}, {said}: use a {number} from 0 to {of - 1}, or a larger {size}"
            )
    if place.local_world_size is not None and place.local_world_size > place.world_size:
        raise UsageError(
            f"local_world_size is {place.local_world_size}, but world_size is {place.world_size}, {said}: "
            "all ranks of a host are ranks of the world too"
        )
    if not 0 < place.master_port < 2**16:
        raise UsageError(f"master_port is {place.master_port}: use a number from 1 to 65535")


def expect_host(place: Place, rank: int) -> str | None:
    """The host from which the launcher's own list lets us expect a rank."""
    if not place.hosts or not place.ranks_per_host:
        return None
    return place.hosts[locate(rank, place.ranks_per_host)[0]]
