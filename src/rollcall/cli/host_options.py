"""Which hosts the options of a command name, and how they are reached."""

import fnmatch
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from rollcall.errors import UsageError
from rollcall.protocol import devices
from rollcall.protocol.hosts import Host, parse, read
from rollcall.protocol.plan import Reach, Way

_OWN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")  # each rank gets its own of these


@dataclass(frozen=True)
class Place:
    """The hosts that the launcher is to lead, and the way to them; none for this machine alone."""

    hosts: tuple[Host, ...]
    way: Way | None
    slots: int  # on this machine alone; else of hosts that name no number


def find(
    hosts: str, hostfile: Path | None, virtual: int | None, ranks: str, alone: bool, environ: Mapping[str, str]
) -> Place:
    """What the options name; else what a scheduler has given us, unless the user says that we are `alone`."""
    given = [name for name, value in (("--hosts", hosts), ("--hostfile", hostfile)) if value]
    given += ["--virtual-hosts"] if virtual is not None else []
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} both name hosts: use one of them")
    if given:
        # How many GPUs or CPUs they have, the hosts know themselves.
        slots = 0 if ranks in devices.COUNTED else devices.slots(ranks or "1")
        if virtual is not None:
            return Place(_virtual(virtual, slots), "virtual", slots)
        return Place(read(hostfile, slots) if hostfile is not None else parse(hosts, slots), "ssh", slots)
    slots = devices.slots(ranks or "1")
    if alone:
        return Place((), None, slots)
    return _allocated(slots if ranks else None, environ) or Place((), None, slots)


def find_step(environ: Mapping[str, str]) -> tuple[str, int, str, int] | None:
    """Where srun has started us once per node: how many we are, which one this is, where the first one listens."""
    if "SLURM_STEP_ID" not in environ:
        return None
    from rollcall.transport import slurm

    return slurm.by_hand(environ) if slurm.is_in_step(environ) else None


def _virtual(count: int, slots: int) -> tuple[Host, ...]:
    from rollcall.transport.virtual_hosts import MOST_HOSTS
    from rollcall.transport.virtual_network import name_of

    if not 1 <= count <= MOST_HOSTS:
        raise UsageError(f"--virtual-hosts {count} is not possible: use a number from 1 to {MOST_HOSTS}")
    return tuple(Host(name_of(number), slots) for number in range(1, count + 1))


def _allocated(slots: int | None, environ: Mapping[str, str]) -> Place | None:
    """All of an allocation, where we are in one."""
    if "SLURM_JOB_ID" not in environ and "PBS_NODEFILE" not in environ:
        return None
    from rollcall.transport import pbs, slurm

    for scheduler, way in ((slurm, "slurm"), (pbs, "pbs")):
        if scheduler.is_in_allocation(environ):
            hosts = scheduler.hosts(environ, slots)
            own = slots or scheduler.own_slots(environ)
            return Place(hosts, cast(Way, way) if hosts else None, own)
    return None


def count(nnodes: str, min_hosts: int, hosts: tuple[Host, ...]) -> tuple[int, int]:
    """The least number of hosts to go on with (0: all), and how many are started by hand."""
    first, colon, most = nnodes.partition(":")
    if not first.isdecimal() or (colon and not most.isdecimal()):
        raise UsageError(f"--nnodes {nnodes} is not a number of hosts: use one number, such as 2, or 2:4 with --hosts")
    least, most_hosts = int(first), int(most or first)
    if not hosts:
        if min_hosts or least != most_hosts:
            raise UsageError(
                f"{'--min-hosts' if min_hosts else f'--nnodes {nnodes}'} needs a launcher that leads all hosts:"
                f" name them with --hosts, --hostfile or --virtual-hosts"
            )
        return 0, least
    if nnodes != "1" and most_hosts != len(hosts):
        raise UsageError(f"--nnodes {nnodes} does not fit the {len(hosts)} hosts that are named: leave it out")
    if min_hosts < 0:
        raise UsageError(f"--min-hosts {min_hosts} is below zero: use 1 or more")
    return min_hosts or (least if colon else 0), 1


def reach(way: Way | None, *, ranks: str = "", python: str = "", env: Sequence[str] = (), **rest: Any) -> Reach | None:
    """How to reach the hosts; None for this machine alone."""
    if way is None:
        only = {"--python": python, "--env": env, **{f"--{name.replace('_', '-')}": rest[name] for name in rest}}
        unused = [name for name, value in only.items() if value]
        if unused:
            raise UsageError(f"{unused[0]} is for several hosts: name them with --hosts, --hostfile or --virtual-hosts")
        return None
    if way != "virtual" and (rest.get("link") or rest.get("delay")):
        raise UsageError("--link and --delay shape the network of virtual hosts: use them with --virtual-hosts")
    if way != "ssh" and rest.get("sync"):
        raise UsageError("--sync copies by ssh: use it with --hosts or --hostfile")
    counted = ranks if ranks in devices.COUNTED else ""
    settings = dict(forwarded(env, os.environ))
    if way == "virtual" and "OMP_NUM_THREADS" not in os.environ:
        # A rank that is alone on its host takes all cores; but these hosts have the same ones.
        settings = {"OMP_NUM_THREADS": "1", **settings}
    return Reach(way, python or sys.executable, counted, tuple(settings.items()), **rest)


def forwarded(patterns: Sequence[str], environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """What `--env` names: a variable, a pattern such as 'NCCL_*', or NAME=VALUE."""
    chosen: dict[str, str] = {}
    for pattern in patterns:
        name, equals, value = pattern.partition("=")
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
