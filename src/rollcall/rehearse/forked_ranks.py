"""Runs ranks: forks them from one server, as many at a time as there are cores, and reads what they leave."""

import os
import pickle
import shutil
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollcall.errors import RollcallError
from rollcall.protocol.plan import Program
from rollcall.rehearse import replay
from rollcall.rehearse.idle_ranks import IdleRanks
from rollcall.rehearse.memory.use import MemoryUse
from rollcall.rehearse.settings import RehearsalSettings
from rollcall.runs import rings_of
from rollcall.worker.fork_server import ForkServer


@dataclass
class RankResult:
    """What one rank left besides its ring."""

    exit_code: int
    calls: bytes = b""  # the same if the rank made the same calls
    is_cut: bool = False  # it was stopped after --steps
    unsupported: str = ""  # what in its program cannot be rehearsed
    missing: tuple[str, str] = ("", "")  # a file that was not there, for which it failed, and the line
    gave: dict[Any, Any] = field(default_factory=dict)
    took: dict[Any, Any] = field(default_factory=dict)
    unknowns: list[dict[str, Any]] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)  # how many records there were after each optimizer step
    memory: MemoryUse | None = None
    memory_log: list[tuple[int, int]] = field(default_factory=list)


def start_server(library: Path) -> ForkServer:
    """Starts the server that ranks are forked from: torch is imported, the device is pretended. No real GPU is used."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return ForkServer.launch([sys.executable, "-m", "rollcall.rehearse.server", str(library)], env)


class ForkedRanks:
    """Forks ranks from one server."""

    def __init__(self, settings: RehearsalSettings, program: Program, folder: Path, server: ForkServer) -> None:
        self._settings, self._program, self._folder, self._server = settings, program, folder, server
        self._began_ns = time.time_ns()
        self._results = folder / "rehearsal"
        self._results.mkdir()
        self._temporary = tempfile.mkdtemp(prefix="rollcall-")
        weakref.finalize(self, shutil.rmtree, self._temporary, ignore_errors=True)

    def run(self, ranks: Iterable[int], table: Path | None, done: Callable[[], None]) -> dict[int, RankResult]:
        """Runs as many ranks at a time as there are cores."""
        todo, running = list(ranks), dict[int, int]()
        found: dict[int, RankResult] = {}
        at_once = min(os.cpu_count() or 1, len(todo))
        idle = IdleRanks(self._settings.limit_s)
        try:
            self._server.prepare(at_once)
            while todo or running:
                while todo and len(running) < at_once:
                    rank = todo.pop(0)
                    running[self._start(rank, table)] = rank
                for end in self._server.ends(idle.look_s):
                    if end.pid in running:
                        rank = running.pop(end.pid)
                        found[rank] = self._read(rank, end.code)
                        if idle.was_ended(end.pid) and not found[rank].unsupported:
                            found[rank].unsupported = _STANDS_STILL
                        done()
                idle.look(running)
        except EOFError:
            raise RollcallError(f"the process that ranks are forked from ended: see {self._folder / 'logs'}") from None
        return found

    def _start(self, rank: int, table: Path | None) -> int:
        for old in (self._result_of(rank), *rings_of(self._folder, 0).glob(f"rank-{rank}.*")):
            old.unlink(missing_ok=True)
        logs = self._folder / "logs" / "attempt-0"
        logs.mkdir(parents=True, exist_ok=True)
        request = {
            "rank": rank,
            "settings": pickle.dumps(self._settings).hex(),
            "program": {"kind": self._program.kind, "target": self._program.target, "args": list(self._program.args)},
            "folder": str(self._folder),
            "cwd": os.getcwd(),
            "env": dict(os.environ),
            "result": str(self._result_of(rank)),
            "table": str(table or ""),
            "temporary": f"{self._temporary}/{rank}",
            "began_ns": self._began_ns,
        }
        with open(os.devnull) as null, open(logs / f"rank-{rank}.log", "w") as log:
            return self._server.start(request, (null.fileno(), log.fileno(), log.fileno()))

    def _result_of(self, rank: int) -> Path:
        return self._results / f"rank-{rank}.pickle"

    def _read(self, rank: int, exit_code: int) -> RankResult:
        path = self._result_of(rank)
        found = pickle.loads(path.read_bytes()) if path.exists() else {}
        ring = rings_of(self._folder, 0) / f"rank-{rank}.ring"
        return RankResult(exit_code, replay.digest(ring) if ring.exists() else b"", **found)


_STANDS_STILL = "it stands still, and does not say where; look at its log, or allow more with --rank-limit-s"
