"""Starts real ranks as processes, none of which outlives its test."""

import atexit
import functools
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

from rollcall.worker.fork_server import ForkServer
from tests.rollcall_command import until
from tests.torch_output import without_torchs

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


@dataclass(frozen=True)
class Rank:
    """One running process."""

    pid: int
    out: IO[str]
    err: IO[str]
    exit_code: Callable[[], int | None]  # None while it runs

    @property
    def is_running(self) -> bool:
        return self.exit_code() is None

    def read_line(self) -> str:
        line = self.out.readline()
        while line and not without_torchs(line):
            line = self.out.readline()
        return line.strip()

    def wait(self, timeout_s: float = 60.0) -> Ended:
        """Its streams are read when it is gone: what a test prints fits into a pipe."""
        assert until(lambda: not self.is_running, timeout_s), f"process {self.pid} still runs after {timeout_s} s"
        code = self.exit_code()
        assert code is not None
        return Ended(code, without_torchs(self.out.read()), self.err.read())

    def kill(self) -> None:
        if self.is_running:
            os.kill(self.pid, signal.SIGKILL)

    def end(self) -> None:
        self.kill()
        until(lambda: not self.is_running)
        for pipe in (self.out, self.err):
            pipe.close()


def clean_environ(**more: object) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not LAUNCHER_VARIABLES.fullmatch(name)}
    return {**kept, "OMP_NUM_THREADS": "1", **{name: str(value) for name, value in more.items()}}


class WarmRanks:
    """Forks ranks from a process that has imported torch: they take milliseconds of a core instead of seconds."""

    _SERVER = """\
import socket, sys
import torch._dynamo  # needed by every DDP module
import torch._inductor.compile_fx  # by torch.compile, whatever its backend: a second of a core for each rank
import rollcall.initialization.process_group
from rollcall.worker import fork_server, main
fork_server.serve(socket.socket(fileno=int(sys.argv[1])), main.run_request)
"""

    def __init__(self) -> None:
        self._server = ForkServer.launch([sys.executable, "-c", self._SERVER], clean_environ())
        atexit.register(self._server.close)
        self._exit_codes: dict[int, int] = {}

    def start(
        self, script: Path, environ: Mapping[str, str], cwd: Path | None = None, record: dict[str, Any] | None = None
    ) -> Rank:
        program = {"kind": "script", "target": str(script), "args": []}
        request = {
            "env": dict(environ),
            "cwd": str(cwd or Path.cwd()),
            "program": program,
            "start": "warm",
            "record": record,
        }
        (out, to_out), (err, to_err) = os.pipe(), os.pipe()
        with open(os.devnull) as nothing, open(to_out, "w") as ours_1, open(to_err, "w") as ours_2:
            pid = self._server.start(request, (nothing.fileno(), ours_1.fileno(), ours_2.fileno()))
        self._exit_codes.pop(pid, None)  # of an earlier process with this number
        return Rank(pid, open(out), open(err), lambda: self._exit_code(pid))

    def _exit_code(self, pid: int) -> int | None:
        self._exit_codes.update({end.pid: end.code for end in self._server.ends(0)})
        return self._exit_codes.get(pid)


warm_ranks = functools.cache(WarmRanks)  # one server, which ends with this process


@contextmanager
def started(script: str, environs: Sequence[Mapping[str, object]], is_fresh: bool = False) -> Iterator[list[Rank]]:
    """One process of this script for each environment; all are ended at the end of the block. A fresh one is a new
    interpreter: for what is about how a program begins or ends."""
    ranks: list[Rank] = []
    with TemporaryDirectory() as folder:
        path = Path(folder, "script.py")
        path.write_text(textwrap.dedent(script))
        try:
            for each in environs:
                environ = clean_environ(**each)
                fresh = _open([sys.executable, str(path)], environ) if is_fresh else None
                ranks.append(fresh or warm_ranks().start(path, environ))
            yield ranks
        finally:
            for rank in ranks:
                rank.end()


def run(script: str, environs: Sequence[Mapping[str, object]], is_fresh: bool = False) -> list[Ended]:
    with started(script, environs, is_fresh) as ranks:
        return [rank.wait() for rank in ranks]


def run_command(command: Sequence[str], timeout_s: float = 90.0, **environ: object) -> Ended:
    rank = _open(command, clean_environ(**environ))
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


def _open(command: Sequence[str], environ: Mapping[str, str]) -> Rank:
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        command, env=dict(environ), text=True, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe
    )
    assert process.stdout is not None
    assert process.stderr is not None
    return Rank(process.pid, process.stdout, process.stderr, process.poll)
