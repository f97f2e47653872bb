"""Which hosts the options of a command name, and how they are reached."""

import fnmatch
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollcall.cli.run.options import RunOptions
from rollcall.errors import UsageError
from rollcall.protocol import devices, torchrun_env
from rollcall.protocol.hosts import Host, parse, read
from rollcall.protocol.plan import THIS_HOST, Transport, TransportKind

# Each rank gets its own of these.
_OWN = (*torchrun_env.NUMBERS.values(), torchrun_env.MASTER_ADDR, torchrun_env.MASTER_PORT)


@dataclass(frozen=True)
class Hosts:
    """The hosts of a command, and the transport that starts agents there."""

    hosts: tuple[Host, ...]
    kind: TransportKind

    @property
    def has_named(self) -> bool:
        """Whether the hosts were named, by options or by a scheduler; otherwise it is this machine alone."""
        return self.kind != "local"


@dataclass(frozen=True)
class RunHosts:
    """The same for `rollcall run`, with the number of this host if hosts are started by hand."""

    hosts: tuple[Host, ...]
    transport: Transport
    nnodes: int
    node_rank: int | None
    master_addr: str | None
    master_port: int | None


def find(options: RunOptions, environ: Mapping[str, str]) -> RunHosts:
    nnodes, node_rank = options.nnodes, options.node_rank
    master_addr, master_port = options.master_addr, options.master_port
    is_by_hand = options.standalone or nnodes != "1" or bool(options.rdzv_endpoint) or master_addr is not None
    if not is_by_hand and (step := _slurm_step(environ)) is not None:
        nnodes, node_rank, master_addr, master_port = step
        is_by_hand = True
    ranks = options.nproc_per_node
    found = named(options.hosts, options.hostfile, options.virtual_hosts, ranks, is_by_hand, environ)
    least, by_hand = count(nnodes, options.min_hosts, found)
    chosen = transport(
        found.kind,
        ranks=ranks,
        python=options.python,
        env=options.env or [],
        min_hosts=least,
        spares=options.spares,
        srun_args=_srun_args(options.srun_arg or []),
        allow_mixed=options.allow_mixed,
        sync=options.sync,
        link=options.link,
        delay=options.delay,
    )
    return RunHosts(found.hosts, chosen, by_hand, node_rank, master_addr, master_port)


def named(
    hosts: str | None,
    hostfile: Path | None,
    virtual: int | None,
    ranks: str,
    is_alone: bool,
    environ: Mapping[str, str],
) -> Hosts:
    """The hosts that the options name; otherwise those of a scheduler's allocation, unless `is_alone`."""
    options = {"--hosts": hosts, "--hostfile": hostfile, "--virtual-hosts": virtual}
    given = [name for name, value in options.items() if value is not None]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} both name hosts: use one of them")
    if given:
        # Each host counts its own GPUs or CPUs.
        slots = 0 if ranks in devices.COUNTED else devices.slots(ranks or "1")
        if virtual is not None:
            return Hosts(_virtual(virtual, slots), "virtual")
        return Hosts(parse(hosts, slots) if hosts is not None else read(hostfile or Path(), slots), "ssh")
    slots = devices.slots(ranks or "1")
    allocated = None if is_alone else _allocated(slots if ranks else None, environ)
    return allocated or this_host(slots)


def this_host(slots: int) -> Hosts:
    return Hosts((Host(THIS_HOST, slots),), "local")


def _slurm_step(environ: Mapping[str, str]) -> tuple[str, int, str, int] | None:
    """If srun has started this process once per node: nnodes, node rank, address and port of the first node."""
    if "SLURM_STEP_ID" not in environ:
        return None
    from rollcall.transport import slurm  # here: most runs are in no step

    return slurm.by_hand(environ) if slurm.is_in_step(environ) else None


def _virtual(count: int, slots: int) -> tuple[Host, ...]:
    from rollcall.transport.virtual.hosts import names  # here: most runs have none

    return tuple(Host(name, slots) for name in names(count))


def _allocated(slots: int | None, environ: Mapping[str, str]) -> Hosts | None:
    """All hosts of an allocation, if this process is in one."""
    if "SLURM_JOB_ID" not in environ and "PBS_NODEFILE" not in environ:
        return None
    from rollcall.transport import pbs, slurm  # here: most runs are in no allocation

    kind: TransportKind
    for scheduler, kind in ((slurm, "slurm"), (pbs, "pbs")):
        if scheduler.is_in_allocation(environ):
            hosts = scheduler.hosts(environ, slots)
            return Hosts(hosts, kind) if hosts else this_host(slots or scheduler.own_slots(environ))
    return None


def count(nnodes: str, min_hosts: int, found: Hosts) -> tuple[int, int]:
    """The least number of hosts to continue with (0: all), and how many are started by hand."""
    first, colon, most = nnodes.partition(":")
    if not first.isdecimal() or (colon and not most.isdecimal()):
        raise UsageError(f"--nnodes {nnodes} is not a number of hosts: use one number, such as 2, or 2:4 with --hosts")
    least, most_hosts = int(first), int(most or first)
    if not found.has_named:
        if min_hosts or least != most_hosts:
            raise UsageError(
                f"{'--min-hosts' if min_hosts else f'--nnodes {nnodes}'} needs a launcher that leads all hosts:"
                f" name them with --hosts, --hostfile or --virtual-hosts"
            )
        return 0, least
    if nnodes != "1" and most_hosts != len(found.hosts):
        raise UsageError(f"--nnodes {nnodes} does not fit the {len(found.hosts)} hosts that are named: leave it out")
    if min_hosts < 0:
        raise UsageError(f"--min-hosts {min_hosts} is below zero: use 1 or more")
    return min_hosts or (least if colon else 0), 1


def transport(
    kind: TransportKind, *, ranks: str = "", python: str = "", env: Sequence[str] = (), **rest: Any
) -> Transport:
    """How to reach the hosts."""
    if kind != "slurm" and rest.get("srun_args"):
        raise UsageError("--srun-arg is for the srun of a SLURM job: use it inside an allocation, or with --slurm")
    if kind == "local":
        only = {"--python": python, "--env": env, **{f"--{name.replace('_', '-')}": rest[name] for name in rest}}
        unused = [name for name, value in only.items() if value]
        if unused:
            raise UsageError(f"{unused[0]} is for several hosts: name them with --hosts, --hostfile or --virtual-hosts")
        return Transport()
    if kind != "virtual" and (rest.get("link") or rest.get("delay")):
        raise UsageError("--link and --delay shape the network of virtual hosts: use them with --virtual-hosts")
    if kind != "ssh" and rest.get("sync"):
        raise UsageError("--sync copies by ssh: use it with --hosts or --hostfile")
    counted = ranks if ranks in devices.COUNTED else ""
    settings = dict(forwarded(env, os.environ))
    if kind == "virtual" and "OMP_NUM_THREADS" not in os.environ:
        # A rank that is alone on its host would use all cores, but virtual hosts share them.
        settings = {"OMP_NUM_THREADS": "1", **settings}
    return Transport(kind, python or sys.executable, counted, tuple(settings.items()), **rest)


def _srun_args(arguments: Sequence[str]) -> tuple[str, ...]:
    for argument in arguments:
        if not argument.startswith("-"):
            raise UsageError(
                f"--srun-arg {argument} is no option of srun: write it with its dashes, as in"
                f" --srun-arg=--container-image=my/image"
            )
    return tuple(arguments)


def forwarded(patterns: Sequence[str], environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The variables that `--env` names: by name, by a pattern such as 'NCCL_*', or as NAME=VALUE."""
    chosen: dict[str, str] = {}
    for pattern in patterns:
        name, equals, value = pattern.partition("=")
        if equals and not name:
            raise UsageError(f"--env {pattern} names no variable: write --env NAME=VALUE")
        if equals:
            chosen[name] = value
        elif any(sign in name for sign in "*?["):
            chosen.update({n: v for n, v in environ.items() if fnmatch.fnmatchcase(n, name)})
        elif name in environ:
            chosen[name] = environ[name]
        else:
            raise UsageError(f"--env {name} is not set here: set it, or write --env {name}=VALUE")
    if clash := [name for name in _OWN if name in chosen]:
        raise UsageError(f"--env {clash[0]} cannot be passed on: each rank gets its own")
    return tuple(chosen.items())
