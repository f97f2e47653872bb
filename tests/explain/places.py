"""Where a program of the corpus runs: here, on virtual hosts, or on hosts by ssh, one of them cut off meanwhile.

A cut is one that nobody is told of: links stay up, and the switch drops what comes. By ssh it takes the launcher's own
connection with it, as a pulled cable does. Virtual hosts hear the launcher by another way: there it is as if the
network for data had failed, and not the one for control.
"""

import contextlib
import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cluster.fixtures import CLUSTER_PROGRAMS
from tests.cluster.programs import why_not
from tests.cluster.sshd import Cluster

if TYPE_CHECKING:
    from .corpus import Program

_MOST_S = 20.0
_LOOK_S = 0.05
_ENOUGH_LINES = 3


@dataclass(frozen=True)
class Place:
    """Options of `rollcall run`, and variables."""

    words: list[str]
    env: dict[str, str] = field(default_factory=dict)


def why_no_hosts() -> str | None:
    return why_not(CLUSTER_PROGRAMS)


@contextlib.contextmanager
def place(program: "Program", home: Path) -> Iterator[Place]:
    """While inside, a run below `home` loses the host that the program names, if it names one."""
    run, per_host = home / "runs" / "latest", str(program.ranks // max(program.hosts, 1))
    if program.way == "ssh":
        with Cluster(program.hosts) as cluster:
            names = ",".join(f"{host.name}:{per_host}" for host in cluster.hosts)
            with _cutting(program, run, lambda: cluster[program.cut].cut()):
                yield Place(["--hosts", names], cluster.env)
    elif program.way == "virtual":
        with _cutting(program, run, lambda: _cut_virtual(run, program.cut)):
            yield Place(["--virtual-hosts", str(program.hosts), "-n", per_host])
    else:
        yield Place(["-n", per_host])


@contextlib.contextmanager
def _cutting(program: "Program", run: Path, cut: Callable[[], None]) -> Iterator[None]:
    over = threading.Event()
    cutter = threading.Thread(target=_cut_in_time, args=(program, run, cut, over))
    if program.cut:
        cutter.start()
    try:
        yield
    finally:
        over.set()
        if program.cut:
            cutter.join()


def _cut_in_time(program: "Program", run: Path, cut: Callable[[], None], over: threading.Event) -> None:
    """Once every rank has printed a few lines, and so is in the middle of its work."""
    for _ in range(int(_MOST_S / _LOOK_S)):
        lines = [log.read_bytes().count(b"\n") for log in run.glob("logs/attempt-0/rank-*.log")]
        if len(lines) == program.ranks and min(lines) >= _ENOUGH_LINES:
            cut()
            return
        if over.wait(_LOOK_S):
            return


def _cut_virtual(run: Path, host: str) -> None:
    """The launcher has an open file of the switch, which is a network namespace with a port for each host."""
    launcher = json.loads((run / "run.json").read_text())["launcher_pid"]
    port = f"port{host.removeprefix('host-')}"
    for fd in Path(f"/proc/{launcher}/fd").iterdir():
        with contextlib.suppress(OSError):
            if os.readlink(fd).startswith("net:["):
                words = ["nsenter", f"--net={fd}", "bridge", "link", "set", "dev", port, "state", "0"]
                if subprocess.run(words, capture_output=True, check=False).returncode == 0:
                    return
    raise RuntimeError(f"the launcher {launcher} has no switch with {port}: is it root, and are they virtual hosts?")
