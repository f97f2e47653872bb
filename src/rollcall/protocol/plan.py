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
from rollcall.units import plural

MOST_RANKS_PER_HOST = 4096
REJOINS = "ROLLCALL_REJOINS"  # set where a scheduler starts lost hosts again: they take their old places
LOOPBACK = "127.0.0.1"
NumaBinding = Literal["node", "socket", "exclusive", "core-complex"]  # as torch/numa/binding.py has them
OnHang = Literal["report", "stop", "restart"]
TransportKind = Literal["local", "ssh", "slurm", "pbs", "virtual"]
THIS_HOST = "this host"
DEFAULT_PORT = 29500  # torchrun's, for starting by hand on several hosts


@dataclass(frozen=True)
class Program:
    """What every rank runs: a Python script or folder, a module, or any command."""

    kind: Literal["script", "module", "command"]
    target: str
    args: tuple[str, ...] = ()

    def command(self) -> list[str]:
        """The command that torchrun would start a rank with."""
        head = {"script": [sys.executable, "-u"], "module": [sys.executable, "-u", "-m"], "command": []}
        return [*head[self.kind], self.target, *self.args]

    def run_arguments(self) -> list[str]:
        """What the user types after `rollcall run`."""
        return [*{"script": [], "module": ["-m"], "command": ["--no-python"]}[self.kind], self.target, *self.args]


@dataclass(frozen=True)
class Show:
    """Which ranks and streams reach the console. Log files always get everything."""

    ranks: tuple[int, ...] | None = None  # None: all
    local_ranks: tuple[int, ...] | None = None
    redirected: tuple[tuple[int, int], ...] = ()  # (local rank or -1 for all, stream): not shown,
    teed: tuple[tuple[int, int], ...] = ()  # but for these


@dataclass(frozen=True)
class Transport:
    """How agents are started on the hosts of a run, and with which settings."""

    kind: TransportKind = "local"
    python: str = sys.executable  # on the hosts
    ranks: str = ""  # gpu, cpu or auto: how many ranks hosts get that name no number
    env: tuple[tuple[str, str], ...] = ()  # variables to set there, in addition to those that are there
    allow_mixed: bool = False
    min_hosts: int = 0  # 0: all of them
    spares: int = 0  # the last hosts have no ranks: they replace hosts that are lost
    sync: bool = False
    srun_args: tuple[str, ...] = ()  # for the srun that starts agents
    link: str | None = None  # bandwidth of virtual hosts
    delay: str | None = None


@dataclass(frozen=True)
class ByHand:
    """`rollcall run` was typed on each of several hosts: they agree among themselves through a store."""

    nnodes: int
    node_rank: int | None = None  # None: in the order in which they arrive


@dataclass(frozen=True)
class Plan:
    """One run, as its launcher sees it; `on` gives the part of one host."""

    program: Program
    hosts: tuple[Host, ...]  # at least one; this machine alone is one, too
    transport: Transport = Transport()
    by_hand: ByHand | None = None
    interface: str | None = None
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
    monitor_interval_s: float = 0.1
    log_dir: str | None = None
    virtual_local_rank: bool = False
    numa_binding: NumaBinding | None = None
    record: bool = False
    ring_mb: int | None = None  # the size of a rank's recording; None: the default
    hang_after_s: float = 60.0
    on_hang: OnHang = "report"
    on_event: str = ""  # a command that gets one JSON object per event
    metrics: str = ""  # HOST:PORT where the launcher's metrics are served
    show: Show = Show()
    prompt: str = ""  # a socket on the launcher's machine, which ranks of `rollcall shell` talk to
    cwd: str = ""

    @property
    def slots(self) -> int:
        """The slots of the first host, which on an agent is the only one."""
        return self.hosts[0].slots

    @property
    def world_size(self) -> int:
        """The world size as far as this launcher knows: hosts that are started by hand are taken to have as many
        slots."""
        slots = sum(host.slots for host in self.hosts[: self.places])
        return slots * (self.by_hand.nnodes if self.by_hand else 1)

    @property
    def places(self) -> int:
        """How many hosts have ranks at a time."""
        return len(self.hosts) - self.transport.spares

    def on(self, host: Host) -> "Plan":
        """The part of one of the hosts."""
        # The environment is sent to the hosts in another way: it may hold secrets, and plans are written to files.
        return dataclasses.replace(self, hosts=(host,), transport=Transport(), on_event="")

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "Plan":
        parts = {
            "program": Program(**{name: _tuples(value) for name, value in fields["program"].items()}),
            "hosts": tuple(Host(**host) for host in fields["hosts"]),
            "transport": Transport(**{name: _tuples(value) for name, value in fields["transport"].items()}),
            "by_hand": ByHand(**fields["by_hand"]) if fields["by_hand"] else None,
            "show": Show(**{name: _tuples(value) for name, value in fields["show"].items()}),
            "preload": tuple(fields["preload"]),
        }
        return cls(**{**fields, **parts})


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list | tuple) else value


def check(plan: Plan) -> Plan:
    """The plan, if it can work."""
    if not 1 <= plan.slots <= MOST_RANKS_PER_HOST and not plan.transport.ranks:
        raise UsageError(
            f"-n {plan.slots} asks for {plan.slots} ranks on one host, but 1 to {MOST_RANKS_PER_HOST} can start"
            f" there: use `-n {os.cpu_count()}` for one per core, or more hosts with --hosts"
        )
    if plan.transport.spares:
        _check_spares(plan, plan.transport.spares)
    if not 0 <= plan.transport.min_hosts <= plan.places:
        without = " without the spares" if plan.transport.spares else ""
        raise UsageError(
            f"at least {plan.transport.min_hosts} hosts are asked for, but {plan.places} are named{without}: name"
            f" more, or ask for less"
        )
    if plan.by_hand is not None:
        _check_by_hand(plan, plan.by_hand)
    if plan.max_restarts < 0:
        raise UsageError(f"--max-restarts {plan.max_restarts} is below zero: use 0 for none")
    for rank in plan.show.ranks or ():
        if plan.by_hand is None and all(host.slots for host in plan.hosts) and rank >= plan.world_size:
            raise UsageError(f"--show names rank {rank}, but the ranks of this run are 0 to {plan.world_size - 1}")
    check_program(plan.program, plan.cwd)
    return plan


def _check_spares(plan: Plan, spares: int) -> None:
    if not 0 < spares < len(plan.hosts):
        raise UsageError(
            f"--spares {spares} of {len(plan.hosts)} hosts leaves no host to run on, or is below zero: name more hosts;"
            f" the last ones are the spares"
        )
    if len(slots := {host.slots for host in plan.hosts}) > 1:
        raise UsageError(
            f"--spares {spares} needs hosts that can replace each other, but they have {_slots(plan.hosts)}: give all"
            f" the same number, such as {max(slots)}"
        )


def _check_by_hand(plan: Plan, by_hand: ByHand) -> None:
    nnodes, node_rank = by_hand.nnodes, by_hand.node_rank
    if nnodes < 1:
        raise UsageError(f"--nnodes {nnodes} leaves no host to run on: use 1 or more")
    if node_rank is not None and not 0 <= node_rank < nnodes:
        raise UsageError(f"--node-rank {node_rank} is not among {nnodes} hosts: they are numbered 0 to {nnodes - 1}")
    if plan.on_hang == "restart":
        raise UsageError("--on-hang restart needs a launcher that leads all hosts: name them with --hosts, or use stop")
    if plan.master_addr is None:
        raise UsageError(f"--nnodes {nnodes} needs --master-addr: the address of the host with --node-rank 0")


def check_program(program: Program, cwd: str) -> None:
    if program.kind != "script":
        return
    path = Path(cwd, program.target)
    if program.target == "-":
        raise UsageError("ranks cannot all read a program from standard input: write it to a file, and name that")
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
        raise UsageError(
            f"{program.target} is a pipe or a device, which ranks cannot all read: write the program to a file, and"
            " name that"
        )
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
            f"{name}{where} is not Python ({why}): fix it, or use --no-python if it is a command of its own"
        ) from error


def describe(plan: Plan) -> str:
    """The plan in words, and what you would otherwise have typed on each machine for each rank."""
    hosts = _hosts_by_hand(plan, plan.by_hand) if plan.by_hand else plan.hosts
    first = plan.hosts[0]
    master = plan.master_addr or (LOOPBACK if plan.transport.kind == "local" else first.address or first.name)
    spares = plan.hosts[plan.places :]
    hosts = hosts[: len(hosts) - len(spares)]
    lines = [
        f"{plan.world_size} ranks of {shlex.join(plan.program.run_arguments())}",
        f"on {plural(len(hosts), 'host')} with {_slots(hosts)}, {plan.start} start,"
        f" at most {plan.max_restarts} restarts",
        *([f"spares: {', '.join(host.name for host in spares)}"] if spares else []),
    ]
    first_rank = 0
    for node, host in enumerate(hosts):
        lines.append(f"\n# on {host.name} (node {node}), without rollcall:")
        for local in range(host.slots):
            env = {
                "MASTER_ADDR": master,
                "MASTER_PORT": plan.master_port or DEFAULT_PORT,
                "WORLD_SIZE": plan.world_size,
                "RANK": first_rank + local,
                "LOCAL_RANK": local,
                "LOCAL_WORLD_SIZE": host.slots,
            }
            settings = " ".join(f"{name}={value}" for name, value in env.items())
            lines.append(f"{settings} {shlex.join(_python_command(plan.program))} &")
        first_rank += host.slots
    return "\n".join(lines)


def _hosts_by_hand(plan: Plan, by_hand: ByHand) -> tuple[Host, ...]:
    """All of them, as far as this one can tell."""
    names = (THIS_HOST if node == by_hand.node_rank else f"host of node {node}" for node in range(by_hand.nnodes))
    return tuple(Host(name, plan.slots) for name in names)


def _slots(hosts: tuple[Host, ...]) -> str:
    counts = [host.slots for host in hosts]
    return f"{counts[0]} slots each" if len(set(counts)) == 1 else f"{', '.join(map(str, counts))} slots"


def _python_command(program: Program) -> list[str]:
    command = [program.target, *program.args]
    return command if program.kind == "command" else [os.path.basename(sys.executable), *program.run_arguments()]
