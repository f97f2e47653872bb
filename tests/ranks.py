"""Starts real ranks as subprocesses, none of which outlives its test."""

import os
import re
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

# A launcher may have started pytest: its variables must not reach the ranks of a test.
LAUNCHER_VARIABLES = re.compile(
    r"RANK|WORLD_SIZE|LOCAL_\w+|GROUP_\w+|ROLE_\w+|MASTER_\w+|(SLURM|PBS|OMPI|PMIX|TORCHELASTIC|ROLLCALL)_\w+"
)


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """The lines of rollcall on stderr."""
        return "\n".join(line for line in self.err.splitlines() if line.startswith("rollcall: "))


@dataclass
class Rank:
    """One running process."""

    process: subprocess.Popen[str]

    @property
    def pid(self) -> int:
        return self.process.pid

    def read_line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def wait(self, timeout_s: float = 60.0) -> Ended:
        out, err = self.process.communicate(timeout=timeout_s)
        return Ended(self.process.returncode, out, err)

    def end(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


def clean_environ(**more: object) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not LAUNCHER_VARIABLES.fullmatch(name)}
    return {**kept, "OMP_NUM_THREADS": "1", **{name: str(value) for name, value in more.items()}}


@contextmanager
def started(script: str, environs: Sequence[Mapping[str, object]]) -> Iterator[list[Rank]]:
    """One process of this script for each environment; all are ended at the end of the block."""
    ranks: list[Rank] = []
    try:
        for environ in environs:
            command = [sys.executable, "-c", textwrap.dedent(script)]
            ranks.append(Rank(_open(command, clean_environ(**environ))))
        yield ranks
    finally:
        for rank in ranks:
            rank.end()


def run(script: str, environs: Sequence[Mapping[str, object]], timeout_s: float = 60.0) -> list[Ended]:
    with started(script, environs) as ranks:
        return [rank.wait(timeout_s) for rank in ranks]


def run_command(command: Sequence[str], timeout_s: float = 90.0, **environ: object) -> Ended:
    rank = Rank(_open(command, clean_environ(**environ)))
    try:
        return rank.wait(timeout_s)
    finally:
        rank.end()


def by_hand(world_size: int, port: int, **more: object) -> list[dict[str, object]]:
    """The environments of ranks that are started by hand."""
    common = {"WORLD_SIZE": world_size, "MASTER_PORT": port, **more}
    return [{"RANK": rank, **common} for rank in range(world_size)]


@contextmanager
def held_port() -> Iterator[int]:
    """A port that no other test gets. It is bound but does not listen: a process that asks for this number with
    SO_REUSEADDR, as torch and rollcall do, gets it; one that asks for any free port does not."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def _open(command: Sequence[str], environ: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        env=dict(environ),
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
