"""What is to run where: a pure, printable value. Nothing here starts anything."""

import dataclasses
import os
import shlex
import stat
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rollcall.errors import UsageError
from rollcall.protocol.hosts import Host

MOST_RANKS_PER_HOST = 4096
LOOPBACK = "127.0.0.1"
Way = Literal["ssh", "slurm", "pbs", "virtual"]
DEFAULT_PORT = 29500  # torchrun's, for starting by hand on several hosts


@dataclass(frozen=True)
class Program:
    """What every rank runs: a Python script or folder, a module, or any command."""

    kind: Literal["script", "module", "command"]
    target: str
    args: tuple[str, ...] = ()

    def command(self) -> list[str]:
        """The words that torchrun would start a rank with."""
        head = {"script": [sys.executable, "-u"], "module": [sys.executable, "-u", "-m"], "command": []}
        return [*head[self.kind], self.target, *self.args]

    def words(self) -> list[str]:
        """The words that the user types after `rollcall run`."""
        return [*{"script": [], "module": ["-m"], "command": ["--no-python"]}[self.kind], self.target, *self.args]


@dataclass(frozen=True)
class Show:
    """Which ranks and streams reach the console. Log files always get everything."""

    ranks: tuple[int, ...] | None = None  # None: all
    local_ranks: tuple[int, ...] | None = None
    redirected: tuple[tuple[int, int], ...] = ()  # (local rank or -1 for all, stream): not shown,
    teed: tuple[tuple[int, int], ...] = ()  # but for these


@dataclass(frozen=True)
class Reach:
    """How the hosts of a run are reached, and what they get along."""

    way: Way
    python: str = sys.executable  # there
    ranks: str = ""  # gpu, cpu or auto: how many ranks hosts get that name no number
    env: tuple[tuple[str, str], ...] = ()  # to set there, beyond what is there already
    allow_mixed: bool = False
    min_hosts: int = 0  # 0: all of them
    sync: bool = False
    link: str | None = None  # of virtual hosts
    delay: str | None = None


@dataclass(frozen=True)
class Plan:
    """One run: all of it where the launcher leads several hosts, else this host's part."""

    program: Program
    slots: int
    hosts: tuple[Host, ...] = ()  # those that the launcher leads; none: this machine alone, or started by hand
    reach: Reach | None = None
    interface: str | None = None
    nnodes: int = 1
    node_rank: int | None = 0
    master_addr: str | None = None
    master_port: int = 0
    max_restarts: int = 0
    first_attempt: int = 0  # more than 0 where a scheduler starts the same job again
    start: Literal["warm", "fresh"] = "warm"
    preload: tuple[str, ...] = ()
    role: str = "default"
    run_id: str = ""
    join_timeout_s: float = 600.0
    timeout_s: float | None = None
    grace_s: float = 10.0
    log_dir: str | None = None
    virtual_local_rank: bool = False
    record: bool = False
    hang_after_s: float = 60.0
    on_hang: Literal["report", "stop"] = "report"
    show: Show = Show()
    cwd: str = ""

    @property
    def world_size(self) -> int:
        """As far as this host knows: those started by hand are taken to have as many slots."""
        return sum(host.slots for host in self.hosts) or self.slots * self.nnodes

    def on(self, host: Host) -> "Plan":
        """The part of one of the hosts."""
        # The environment has gone there another way, and may hold what does not belong into files.
        return dataclasses.replace(self, slots=host.slots, hosts=(), reach=None)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "Plan":
        program = Program(**{**fields["program"], "args": tuple(fields["program"]["args"])})
        show = Show(**{name: _tuples(value) for name, value in fields["show"].items()})
        hosts = tuple(Host(**host) for host in fields["hosts"])
        reach = Reach(**{name: _tuples(value) for name, value in fields["reach"].items()}) if fields["reach"] else None
        preload = tuple(fields["preload"])
        return cls(**{**fields, "program": program, "show": show, "hosts": hosts, "reach": reach, "preload": preload})


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list | tuple) else value


def check(plan: Plan) -> Plan:
    """The plan, if it can work on this host."""
    if not 1 <= plan.slots <= MOST_RANKS_PER_HOST and not (plan.hosts and plan.reach and plan.reach.ranks):
        raise UsageError(
            f"-n {plan.slots} asks for {plan.slots} ranks on one host, but 1 to {MOST_RANKS_PER_HOST} can start"
            f" there: use `-n {os.cpu_count()}` for one per core, or more hosts with --hosts"
        )
    _check_hosts(plan)
    if plan.nnodes < 1:
        raise UsageError(f"--nnodes {plan.nnodes} leaves no host to run on: use 1 or more")
    if plan.node_rank is not None and not 0 <= plan.node_rank < plan.nnodes:
        raise UsageError(
            f"--node-rank {plan.node_rank} is not among {plan.nnodes} hosts: they are numbered 0 to {plan.nnodes - 1}"
        )
    if plan.nnodes > 1 and plan.master_addr is None:
        raise UsageError(f"--nnodes {plan.nnodes} needs --master-addr: the address of the host with --node-rank 0")
    if plan.max_restarts < 0:
        raise UsageError(f"--max-restarts {plan.max_restarts} is below zero: use 0 for none")
    for rank in plan.show.ranks or ():
        if plan.nnodes == 1 and all(host.slots for host in plan.hosts) and rank >= plan.world_size:
            raise UsageError(f"--show names rank {rank}, but the ranks of this run are 0 to {plan.world_size - 1}")
    check_program(plan.program, plan.cwd)
    return plan


def _check_hosts(plan: Plan) -> None:
    if plan.reach is not None and not 0 <= plan.reach.min_hosts <= len(plan.hosts):
        raise UsageError(
            f"at least {plan.reach.min_hosts} hosts are asked for, but {len(plan.hosts)} are named: name more,"
            f" or ask for less"
        )


def check_program(program: Program, cwd: str) -> None:
    if program.kind != "script":
        return
    path = Path(cwd, program.target)
    if not path.exists():
        hint = (
            f"; did you mean -m {program.target}?" if "/" not in program.target and _is_dotted(program.target) else ""
        )
        raise UsageError(f"there is no script {program.target} in {cwd}: check the path{hint}")
    if path.is_dir():
        if not (path / "__main__.py").exists():
            raise UsageError(f"{program.target} is a folder without __main__.py: name a script in it")
        return
    if not stat.S_ISREG(path.stat().st_mode):
        return  # a pipe, as in `rollcall run <(…)`: it can be read only once
    _check_python(program.target, path)


def _is_dotted(name: str) -> bool:
    return not name.endswith(".py") and all(part.isidentifier() for part in name.split("."))


def _check_python(name: str, path: Path) -> None:
    try:
        source = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {name} ({error.strerror}): check its permissions") from error
    if source.startswith(b"PK\x03\x04") or path.suffix == ".pyc":
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the ranks will say it themselves
            compile(source, name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        where = f" line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        why = error.msg if isinstance(error, SyntaxError) else error
        raise UsageError(
            f"{name}{where} is not Python ({why}): mend it, or use --no-python if it is a command of its own"
        ) from error


def describe(plan: Plan) -> str:
    """The plan in words, and what you would otherwise have typed on each machine for each rank."""
    hosts = plan.hosts or tuple(Host(_by_hand(plan, node), plan.slots) for node in range(plan.nnodes))
    master = plan.master_addr or (plan.hosts[0].address or plan.hosts[0].name if plan.hosts else LOOPBACK)
    lines = [
        f"{plan.world_size} ranks of {shlex.join(plan.program.words())}",
        f"on {len(hosts)} host{'s' * (len(hosts) > 1)} with {_slots(hosts)}, {plan.start} start,"
        f" at most {plan.max_restarts} restarts",
    ]
    first = 0
    for node, host in enumerate(hosts):
        lines.append(f"\n# on {host.name} (node {node}), without rollcall:")
        for local in range(host.slots):
            env = {
                "MASTER_ADDR": master,
                "MASTER_PORT": plan.master_port or DEFAULT_PORT,
                "WORLD_SIZE": plan.world_size,
                "RANK": first + local,
                "LOCAL_RANK": local,
                "LOCAL_WORLD_SIZE": host.slots,
            }
            settings = " ".join(f"{name}={value}" for name, value in env.items())
            lines.append(f"{settings} {shlex.join(_typed(plan.program))} &")
        first += host.slots
    return "\n".join(lines)


def _by_hand(plan: Plan, node: int) -> str:
    return "this host" if node == plan.node_rank or plan.nnodes == 1 else f"host of node {node}"


def _slots(hosts: tuple[Host, ...]) -> str:
    counts = [host.slots for host in hosts]
    return f"{counts[0]} slots each" if len(set(counts)) == 1 else f"{', '.join(map(str, counts))} slots"


def _typed(program: Program) -> list[str]:
    words = [program.target, *program.args]
    return words if program.kind == "command" else [os.path.basename(sys.executable), *program.words()]
