"""The launchers that are compared on several hosts: each command starts a program on all hosts, from a login node."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field

from contenders import PEERS, PROGRAMS, ROLLCALL, TORCHRUN, peer_versions
from jobs import MARK
from ssh_hosts import Cluster, SshHost

PROGRAM = PROGRAMS / "first_all_reduce.py"
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


def _rollcall(start: Start) -> list[str]:
    hosts = ",".join(f"{host.name}:{start.ranks_per_host}" for host in start.hosts)
    return [str(ROLLCALL.executable), "run", "--hosts", hosts, "--env", MARK, str(PROGRAM)]


def _torchrunx(start: Start) -> list[str]:
    names = [host.name for host in start.hosts]
    program = PROGRAMS / "with_torchrunx.py"
    return [*map(str, (PEERS / "bin" / "python", program, start.cluster.ssh_config, start.ranks_per_host)), *names]


def _by_hand(start: Start) -> list[str]:
    """One ssh per host, all at the same time, like a hand-written shell script."""
    lines = [
        f'{shlex.join([*start.cluster.ssh, host.name])} "{MARK}=${MARK}" {shlex.quote(_torchrun(start, node_rank))} &'
        for node_rank, host in enumerate(start.hosts)
    ]
    return ["sh", "-c", "\n".join([*lines, "wait"])]


def _torchrun(start: Start, node_rank: int) -> str:
    """The command that it runs on a host."""
    options = {
        "nnodes": len(start.hosts),
        "node-rank": node_rank,
        "nproc-per-node": start.ranks_per_host,
        "master-addr": start.hosts[0].address,
        "master-port": PORT,
    }
    words = [str(TORCHRUN.executable), *(f"--{name}={value}" for name, value in options.items()), str(PROGRAM)]
    return f"GLOO_SOCKET_IFNAME={INTERFACE} {shlex.join(words)}"


BY_HAND = Contender("ssh + torchrun", _by_hand)
TORCHRUNX = Contender("torchrunx", _torchrunx, "torchrunx" in peer_versions(), {"GLOO_SOCKET_IFNAME": INTERFACE})
OURS = Contender(ROLLCALL.name, _rollcall)
ALL = (BY_HAND, TORCHRUNX, OURS)
