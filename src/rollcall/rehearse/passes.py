"""Runs the ranks of a rehearsal, some at a time, and again until what each got is what the others gave.

A rank runs again if it took something from a collective that is not what the ranks gave to it together.
"""

import os
import pickle
import shutil
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollcall.errors import RollcallError
from rollcall.protocol.plan import Program
from rollcall.rehearse import replay
from rollcall.rehearse.memory.use import MemoryUse
from rollcall.rehearse.settings import RehearsalSettings
from rollcall.rehearse.standstill import IdleRanks
from rollcall.worker.fork_server import ForkServer

# A stop flag, lengths and a configuration settle in two or three passes. A value that goes round the ranks step by step
# takes as many passes as steps: in a large world that is not worth the time, and is told. Few ranks may go on for as
# long as a pass of many takes.
MOST_PASSES, MOST_RUNS_OF_FEW = 6, 128


@dataclass
class RankResult:
    """What one rank left besides its ring."""

    exit_code: int
    calls: bytes = b""  # the same if the rank made the same calls
    is_cut: bool = False  # it was stopped after --steps
    unsupported: str = ""  # what it came to that cannot be rehearsed
    missing: tuple[str, str] = ("", "")  # a file that was not there, for which it failed, and the line
    gave: dict[Any, Any] = field(default_factory=dict)
    took: dict[Any, Any] = field(default_factory=dict)
    unknowns: list[dict[str, Any]] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)  # how many records there were after each optimizer step
    memory: MemoryUse | None = None
    memory_log: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class Rehearsed:
    ranks: dict[int, RankResult]
    passes: int
    unsettled: tuple[int, ...]  # ranks whose collectives would still have to be run again
    unstable: tuple[str, ...] = ()  # lines at which ranks give what differs each time, such as the time
    guessed: tuple[str, ...] = ()  # lines at which ranks that failed then took what ranks give that were not rehearsed


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
        standstill = IdleRanks(self._settings.limit_s)
        try:
            self._server.prepare(at_once)
            while todo or running:
                while todo and len(running) < at_once:
                    rank = todo.pop(0)
                    running[self._start(rank, table)] = rank
                for end in self._server.ends(standstill.look_s):
                    if end.pid in running:
                        rank = running.pop(end.pid)
                        found[rank] = self._read(rank, end.code)
                        if standstill.was_ended(end.pid) and not found[rank].unsupported:
                            found[rank].unsupported = _STANDS_STILL
                        done()
                standstill.look(running)
        except EOFError:
            raise RollcallError(f"the process that ranks are forked from ended: see {self._folder / 'logs'}") from None
        return found

    def _start(self, rank: int, table: Path | None) -> int:
        for old in (self._result_of(rank), *self._folder.glob(f"rings/attempt-0/rank-{rank}.*")):
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
        ring = self._folder / "rings" / "attempt-0" / f"rank-{rank}.ring"
        return RankResult(exit_code, replay.digest(ring) if ring.exists() else b"", **found)


_STANDS_STILL = "it stands still, and does not say where; look at its log, or allow more with --rank-limit-s"
Progress = Callable[[str, int], None]


def rehearse(
    ranks: ForkedRanks,
    settings: RehearsalSettings,
    folder: Path,
    on_progress: Progress,
    others: Mapping[int, RankResult] | None = None,
) -> Rehearsed:
    """`on_progress` is told the name of a pass that begins, and how many ranks it runs; and "", 1 as each ends.
    `others`: what ranks that are not rehearsed gave earlier."""
    from rollcall.rehearse import stale  # here: it imports torch, which the server does meanwhile

    results: dict[int, RankResult] = {}

    def known() -> Any:
        return stale.given({**(others or {}), **results})

    unstable: set[Any] = set()
    changed: set[int] = set()  # ranks that made other calls than in their last pass

    def run(numbers: Iterable[int]) -> None:
        for rank, result in ranks.run(numbers, _write(folder, known()), lambda: on_progress("", 1)).items():
            changed.discard(rank)
            if rank in results:
                unstable.update(stale.find_unstable(results[rank], result))
                changed.update([rank] if result.calls != results[rank].calls else [])
            results[rank] = result

    first, *later = settings.ranks
    on_progress("pass 1", len(settings.ranks))
    # One rank goes ahead: what the others get from it, such as a configuration, is right in their first pass then.
    run([first])
    run(later)
    number = 1
    most = max(MOST_PASSES, MOST_RUNS_OF_FEW // len(settings.ranks))
    while (todo := _to_run_again(results, known(), unstable, folder)) and number < most:
        number += 1
        on_progress(f"pass {number}", len(todo))
        if stale.wait_for_messages(results, known(), todo):
            # One after the other, up and then down the ranks: a message goes along a whole pipeline in one pass.
            for rank in settings.ranks if number % 2 == 0 else reversed(settings.ranks):
                if not stale.is_right(results[rank], known(), unstable):
                    run([rank])
        else:
            run(todo[:1])  # as in the first pass: mostly the rank that the others get something from
            run(todo[1:])
    if todo and not changed:  # the ranks do the same whatever they are told
        unstable.update(key for ops in stale.find(results, known()).values() for key in ops)
        todo = []
    for rank in stale.failed_on_a_guess(results, known()):
        results[rank].is_cut = True
    is_part = len(settings.ranks) < settings.world_size
    guessed = stale.guessed_before_failing(results, known()) if is_part else ()
    return Rehearsed(results, number, tuple(todo), _places(results, unstable), guessed)


def _to_run_again(results: dict[int, RankResult], known: Any, unstable: set[Any], folder: Path) -> list[int]:
    """What a rank takes from an op that never ends does not matter: it would wait there forever. So if all that the
    ranks took from ops that end is right, this is what they do, though it may be a deadlock."""
    from rollcall.rehearse import stale  # here: it imports torch

    wrong = stale.find(results, known, unstable)
    if not wrong:
        return []
    replayed = replay.of_folder(folder, [rank for rank, result in results.items() if result.is_cut])
    replayed.run()
    return [rank for rank, ops in wrong.items() if any(replayed.is_over(rank, took.record) for took in ops.values())]


def _places(results: dict[int, RankResult], unstable: set[Any]) -> tuple[str, ...]:
    """The lines at which ranks give what differs each time."""
    return tuple(sorted({result.took[key][4] for result in results.values() for key in unstable & result.took.keys()}))


def _write(folder: Path, known: Any) -> Path:
    path = folder / "rehearsal" / "given.pickle"
    path.write_bytes(pickle.dumps(known))
    return path
