"""PBS (Professional, OpenPBS, Torque): the hosts of a job come from $PBS_NODEFILE; agents start by ssh or pbsdsh."""

import os
import shlex
import shutil
import socket
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rollcall.errors import UsageError
from rollcall.protocol.devices import visible_gpus
from rollcall.protocol.hosts import Host
from rollcall.protocol.plan import Plan
from rollcall.protocol.scheduler_env import Environ
from rollcall.transport import connect_back, pipe, ssh, supervisor_command
from rollcall.transport.connection import StartAgents

# pbsdsh has no stdin, no stdout and no environment of ours: what an agent needs stands in a file that only we may read.
_RUN = "set -a; . {settings}; cd {cwd}; exec {command}"


def is_in_allocation(environ: Environ) -> bool:
    return "PBS_NODEFILE" in environ


def hosts(environ: Environ, slots: int | None) -> tuple[Host, ...]:
    """The job's hosts, in the order of the file. Empty if it is this host alone."""
    lines = _read(environ)
    names = list(dict.fromkeys(lines))
    if len(names) == 1 and _is_here(names[0]):
        return ()
    own = slots or visible_gpus() or None  # hosts of a job are taken to be alike, and we are on the first
    counts = Counter(lines)
    return tuple(Host(name, own or counts[name]) for name in names)


def own_slots(environ: Environ) -> int:
    """How many ranks fit on this host: a rank per GPU, else as many as the file has lines for it."""
    return visible_gpus() or sum(map(_is_here, _read(environ))) or 1


def _is_here(name: str) -> bool:
    return name.partition(".")[0] == socket.gethostname().partition(".")[0]


def _read(environ: Environ) -> list[str]:
    path = environ["PBS_NODEFILE"]
    try:
        lines = Path(path).read_text().split()
    except OSError as error:
        raise UsageError(
            f"PBS_NODEFILE is {path}, which cannot be read ({error.strerror}): start the run on the job's first host,"
            f" or unset it"
        ) from error
    if not lines:
        raise UsageError(f"PBS_NODEFILE {path} names no host: start the run in a job, or unset it")
    return lines


@contextmanager
def opened(plan: Plan, purpose: str) -> Iterator[StartAgents]:
    """By ssh, as most sites allow within a job; by pbsdsh where there is no ssh, or $ROLLCALL_PBS says so."""
    if os.environ.get("ROLLCALL_PBS", "ssh") == "ssh" and shutil.which(ssh.client()[0]):
        yield pipe.starter(plan, lambda host: ssh.command(host, plan, purpose))
        return
    if shutil.which("pbsdsh") is None:
        raise UsageError("neither ssh nor pbsdsh is on the PATH: load the module that has one of them")
    with _by_pbsdsh(plan, purpose) as start:
        yield start


@contextmanager
def _by_pbsdsh(plan: Plan, purpose: str) -> Iterator[StartAgents]:
    command = shlex.join(supervisor_command.make(plan.transport.python, purpose))
    lines = _read(os.environ)
    # In this folder, which all hosts of a job see.
    with tempfile.NamedTemporaryFile("w", prefix=".rollcall-", dir=plan.cwd) as settings:
        script = _RUN.format(settings=shlex.quote(settings.name), cwd=shlex.quote(plan.cwd), command=command)

        def commands(chosen: list[Host]) -> list[list[str]]:
            return [["pbsdsh", "-n", str(lines.index(host.name)), "--", "/bin/sh", "-c", script] for host in chosen]

        def note(env: Mapping[str, str]) -> None:
            settings.write("".join(f"{name}={shlex.quote(value)}\n" for name, value in env.items()))
            settings.flush()

        with connect_back.opened(plan, commands, "", note) as start:
            yield start
