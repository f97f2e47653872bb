"""The launchers that are compared on several hosts: each command starts a program on all hosts, from a login node."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from contenders import PEERS, PROGRAMS, ROLLCALL, TORCHRUN, peer_versions
from jobs import MARK
from ssh_hosts import Cluster, SshHost

PROGRAM = PROGRAMS / "first_all_reduce.py"
LOSES_A_HOST = PROGRAMS / "keep_reducing.py"
RESTARTS = 3
KEEP_ON = ("--spares=1", f"--max-restarts={RESTARTS}")
INTERFACE = "eth0"  # of every host; by default gloo uses the address of the hostname
PORT = 29500  # torchrun's default


@dataclass(frozen=True)
class Start:
    """The hosts, and how many ranks to start on each."""

    cluster: Cluster
    hosts: list[SshHost]
    ranks_per_host: int

    @property
    def ranks(self) -> int:
        return len(self.hosts) * self.ranks_per_host


@dataclass(frozen=True)
class Contender:
    """A launcher: its command line, run on the login node."""

    name: str
    command: Callable[[Start], list[str]]
    is_here: bool = True
    env: dict[str, str] = field(default_factory=dict)


def _rollcall(start: Start, program: Path = PROGRAM, *options: str) -> list[str]:
    hosts = ",".join(f"{host.name}:{start.ranks_per_host}" for host in start.hosts)
    return [str(ROLLCALL.executable), "run", "--hosts", hosts, "--env", MARK, *options, str(program)]


def _with_spare(start: Start) -> list[str]:
    return _rollcall(start, LOSES_A_HOST, *KEEP_ON)


def _in_slurm(start: Start) -> list[str]:
    nodes = ",".join(host.name for host in start.hosts)
    allocation = ["salloc", "--quiet", "--no-kill", f"--nodes={len(start.hosts)}", f"--nodelist={nodes}"]
    options = ["-n", str(start.ranks_per_host), "--env", MARK, *KEEP_ON]
    return [*allocation, str(ROLLCALL.executable), "run", *options, str(LOSES_A_HOST)]


def _on_virtual_hosts(start: Start) -> list[str]:
    options = ["--virtual-hosts", str(len(start.hosts)), "-n", str(start.ranks_per_host), *KEEP_ON]
    return [str(ROLLCALL.executable), "run", *options, str(LOSES_A_HOST)]


def _torchrunx(start: Start) -> list[str]:
    names = [host.name for host in start.hosts]
    program = PROGRAMS / "with_torchrunx.py"
    return [*map(str, (PEERS / "bin" / "python", program, start.cluster.ssh_config, start.ranks_per_host)), *names]


def _by_hand(start: Start) -> list[str]:
    common = {
        "nnodes": len(start.hosts),
        "nproc-per-node": start.ranks_per_host,
        "master-addr": start.hosts[0].address,
        "master-port": PORT,
    }
    return _on_each(start, [_torchrun(PROGRAM, {**common, "node-rank": node}) for node in range(len(start.hosts))])


def _elastic(start: Start) -> list[str]:
    """With one host fewer it goes on, where restarted ranks do not meet at a store that has addresses of lost ones."""
    options = {
        "nnodes": f"{len(start.hosts) - 1}:{len(start.hosts)}",
        "nproc-per-node": start.ranks_per_host,
        "rdzv-backend": "c10d",
        "rdzv-endpoint": f"{start.hosts[0].address}:{PORT}",
        "max-restarts": RESTARTS,
    }
    command = f"TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 {_torchrun(LOSES_A_HOST, options)}"
    return _on_each(start, [command] * len(start.hosts))


def _on_each(start: Start, commands: list[str]) -> list[str]:
    """One ssh per host, all at the same time, like a hand-written shell script."""
    lines = [
        f'{shlex.join([*start.cluster.ssh, host.name])} "{MARK}=${MARK}" {shlex.quote(command)} &'
        for host, command in zip(start.hosts, commands, strict=True)
    ]
    return ["sh", "-c", "\n".join([*lines, "wait"])]


def _torchrun(program: Path, options: dict[str, object]) -> str:
    """The command on one host."""
    words = [str(TORCHRUN.executable), *(f"--{name}={value}" for name, value in options.items()), str(program)]
    return f"GLOO_SOCKET_IFNAME={INTERFACE} {shlex.join(words)}"


BY_HAND = Contender("ssh + torchrun", _by_hand)
TORCHRUNX = Contender("torchrunx", _torchrunx, "torchrunx" in peer_versions(), {"GLOO_SOCKET_IFNAME": INTERFACE})
OURS = Contender(ROLLCALL.name, _rollcall)
ALL = (BY_HAND, TORCHRUNX, OURS)
ELASTIC = Contender("ssh + torchrun, elastic", _elastic)
WITH_SPARE = Contender("rollcall run --spares 1", _with_spare)
IN_SLURM = Contender("rollcall run --spares 1, in an allocation", _in_slurm)
ON_VIRTUAL_HOSTS = Contender("rollcall run --virtual-hosts 3 --spares 1", _on_virtual_hosts)
