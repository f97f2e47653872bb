"""The three places of the fault matrix: one host, hosts over ssh, a SLURM allocation. Each runs the same program."""

import json
import os
import signal
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from tests.cluster.slurm import Slurm
from tests.cluster.sshd import Cluster, SshHost
from tests.rollcall_command import ROLLCALL, until

# For a run to end, and for processes to go: on a quiet machine they take less than 20 s, and on a busy one they get
# their turn later. The program itself runs longer, so that what is left is noticed.
LIMIT_S = 60

# Ranks meet again and again, until rank 0 finds the file that is named on the command line.
PROGRAM = """\
import pathlib, sys, time
import torch, torch.distributed as dist

dist.init_process_group("gloo")
end, deadline = pathlib.Path(sys.argv[1]), time.monotonic() + 300
over = torch.zeros(1)
while not over.item() and time.monotonic() < deadline:
    if dist.get_rank() == 0 and end.exists():
        over += 1
    dist.all_reduce(over)
    time.sleep(0.02)
print("done", dist.get_rank(), flush=True)
"""


@dataclass
class Run:
    """A run that has begun, or failed to."""

    process: "subprocess.Popen[str]"
    folder: Path
    end_file: Path
    out: str = ""
    err: str = ""
    _facts: dict[str, Any] = field(default_factory=dict)

    @property
    def facts(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / ".rollcall" / "runs" / "latest" / "run.json").read_text()))

    def has_begun(self, ranks: int, attempt: int = 0) -> bool:
        try:
            return len(self.facts["attempts"][attempt]["pids"]) == ranks
        except (OSError, ValueError, IndexError):
            return False

    def rank(self, number: int, attempt: int = 0) -> psutil.Process:
        return psutil.Process(self.facts["attempts"][attempt]["pids"][str(number)])

    def agent_of(self, rank: int) -> psutil.Process:
        """Rank, fork server, agent: each the child of the next."""
        server = self.rank(rank).parent()
        assert server is not None
        agent = server.parent()
        assert agent is not None
        return agent

    def launcher(self) -> psutil.Process:
        return psutil.Process(self.facts["launcher_pid"])

    def finish(self) -> None:
        """Let the program come to its own end."""
        self.end_file.touch()

    def result(self, timeout_s: float = LIMIT_S) -> int:
        """The exit code; it has to come within so long."""
        try:
            self.out, self.err = self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.out, self.err = self.process.communicate()
            raise AssertionError(f"no end after {timeout_s} s; it said:\n{self.out}\n{self.err}") from None
        return self.process.returncode


@dataclass
class Place:
    """Where runs go: 2 ranks on each of the hosts, or 4 on the one."""

    name: str
    cluster: Cluster
    folder: Path
    words: list[str]  # before `rollcall`
    options: list[str]
    hosts: list[SshHost]
    env: dict[str, str]

    @property
    def ranks(self) -> int:
        return 4

    @property
    def last_host(self) -> str:
        """The host of rank 3, by its name."""
        return self.hosts[-1].name

    def start(self, *options: object, begun: bool = True, program: str = PROGRAM) -> Run:
        script, end_file = self.folder / "program.py", self.folder / "end"
        script.write_text(program)
        process = subprocess.Popen(
            [*self.words, *ROLLCALL, "run", *self.options, *map(str, options), str(script), str(end_file)],
            cwd=self.folder,
            env={**os.environ, "ROLLCALL_DIR": str(self.folder / ".rollcall"), **self.env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        run = Run(process, self.folder, end_file)
        if begun and not until(lambda: run.has_begun(self.ranks) or process.poll() is not None):
            process.send_signal(signal.SIGINT)
        if begun:
            assert process.poll() is None, process.communicate()
        return run

    def with_spare(self) -> "Place":
        """The same with a third host beside the two."""
        options = {"ssh": ["--hosts", "h1:2,h2:2,h3:2"], "slurm": ["-n", "2"]}[self.name]
        words = [word.replace("--nodes=2", "--nodes=3").replace("h1,h2", "h1,h2,h3") for word in self.words]
        return replace(self, words=words, options=[*options, "--spares", "1"])

    def left(self) -> list[psutil.Process]:
        """What still runs on any of the hosts, though it had time to end."""
        return self.cluster.wait_until_idle(LIMIT_S)


def local(cluster: Cluster, folder: Path) -> Place:
    """On one host alone: h1, so that its network can be cut."""
    host = cluster["h1"]
    return Place("local", cluster, folder, host.enter, ["-n", "4"], [host], {})


def ssh(cluster: Cluster, folder: Path) -> Place:
    hosts = [cluster["h1"], cluster["h2"]]
    return Place("ssh", cluster, folder, [], ["--hosts", "h1:2,h2:2"], hosts, cluster.env)


def slurm(cluster: Cluster, slurm: Slurm, folder: Path) -> Place:
    words = ["salloc", "--quiet", "--nodes=2", "--nodelist=h1,h2"]
    hosts = [cluster["h1"], cluster["h2"]]
    return Place("slurm", cluster, folder, words, ["-n", "2"], hosts, slurm.env)
