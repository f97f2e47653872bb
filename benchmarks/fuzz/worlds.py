"""Runs programs on warm ranks, several worlds at a time. Leaves a run folder as `rollcall run` does.

One loop for all worlds: it notices the ends of ranks, and looks at rings and CPU times to see which worlds hang.
"""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.fuzz.activity import Activity, Look

from rollcall.agent.monitoring.hang_detector import newest_ops
from rollcall.compat.torch_dns import impatient_env
from rollcall.linux import process_group
from rollcall.protocol.plan import LOOPBACK
from rollcall.protocol.timing import SETTLE_S
from rollcall.protocol.torchrun_env import rank_env
from rollcall.record import ring_format
from rollcall.record.on_request.stacks import ASK, is_listening
from rollcall.worker.fork_server import Exit, ForkServer

_LOOK_S = 0.1
_RUNNABLE = ("R", "D")  # has a processor, or waits for one or for a disk: a traceback needs the sources
_STACKS_S = 0.1  # for the rest of a stack, once it has begun to be written
_MOST_STACKS_S = 1.0
_KILL_S = 1.0
_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Job:
    """A script to run, and the folder for what it leaves."""

    name: str
    script: Path
    folder: Path
    world_size: int
    is_recorded: bool = True


@dataclass(frozen=True)
class Ended:
    """How a world ended: ok, failed, or stopped because it hung."""

    job: Job
    outcome: str
    exit_codes: dict[int, int]
    seconds: float

    @property
    def printed(self) -> dict[int, str]:
        """By rank: what it printed, warnings aside."""
        return {rank: _log(self.job, rank, "out").read_text(errors="replace") for rank in range(self.job.world_size)}


def read(job: Job) -> Ended:
    """A world that has ended before, from its folder."""
    facts = json.loads((job.folder / "run.json").read_text())
    codes = {int(rank): int(code) for rank, code in facts["attempts"][0]["exit_codes"].items()}
    return Ended(job, facts["outcome"], codes, facts["seconds"])


def _log(job: Job, rank: int, stream: str) -> Path:
    return job.folder / "logs" / "attempt-0" / f"rank-{rank}.{stream}"


def run(jobs: Iterable[Job], at_once: int = 4) -> Iterator[Ended]:
    """Each job as soon as it has ended. Nothing is left running when this returns."""
    server = _launch_server()
    try:
        yield from _Loop(server, at_once).run(iter(jobs))
    finally:
        server.close()


def _launch_server() -> ForkServer:
    path = os.pathsep.join([str(_ROOT), *filter(None, sys.path)])
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TORCHELASTIC_", "ROLLCALL_"))}
    env = {**kept, **impatient_env(), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return ForkServer.launch([sys.executable, "-m", "benchmarks.fuzz.server"], env)


class _Loop:
    def __init__(self, server: ForkServer, at_once: int) -> None:
        self._server, self._at_once = server, at_once
        self._worlds: list[_World] = []

    def run(self, jobs: Iterator[Job]) -> Iterator[Ended]:
        has_more = True
        while has_more or self._worlds:
            while has_more and len(self._worlds) < self._at_once:
                job = next(jobs, None)
                has_more = job is not None
                if job is not None:
                    self._worlds.append(_World(job, self._server))
            for end in self._server.ends(0.01):
                for world in self._worlds:
                    world.note(end)
            for world in self._worlds:
                world.tick()
            over = [world for world in self._worlds if world.is_over]
            self._worlds = [world for world in self._worlds if not world.is_over]
            yield from (world.close() for world in over)


@dataclass
class _World:
    job: Job
    server: ForkServer
    running: dict[int, int] = field(default_factory=dict)  # ranks by pid
    ends: dict[int, Exit] = field(default_factory=dict)
    asked: set[int] = field(default_factory=set)
    causes: dict[int, str] = field(default_factory=dict)
    outcome: str = ""

    def __post_init__(self) -> None:
        from torch.distributed import TCPStore  # here: generating and scoring need no torch

        self._began_s = self._next_look_s = time.monotonic()
        self._activity = Activity(self._began_s)
        self._end_by_s: float | None = None
        (self.job.folder / "rings" / "attempt-0").mkdir(parents=True)
        _log(self.job, 0, "out").parent.mkdir(parents=True)
        self._store = TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)
        for rank in range(self.job.world_size):
            self.running[self._start(rank)] = rank
        self.server.prepare(self.job.world_size)

    def _start(self, rank: int) -> int:
        job, size = self.job, self.job.world_size
        numbers = {"rank": rank, "world_size": size, "local_rank": rank, "local_world_size": size}
        env = rank_env(
            **numbers, node_rank=0, nnodes=1, master_addr=LOOPBACK, master_port=self._store.port, run_id=job.name
        )
        record = {"folder": str(job.folder), "rank": rank, "world_size": size, "attempt": 0}
        request = {
            "env": env,
            "cwd": str(job.folder),
            "program": {"kind": "script", "target": str(job.script), "args": []},
            "start": "warm",
            "record": record if job.is_recorded else None,
        }
        with (
            open(os.devnull) as nothing,
            open(_log(job, rank, "out"), "wb") as out,
            open(_log(job, rank, "err"), "wb") as err,
        ):
            return self.server.start(request, (nothing.fileno(), out.fileno(), err.fileno()))

    @property
    def is_over(self) -> bool:
        return not self.running

    def note(self, end: Exit) -> None:
        rank = self.running.pop(end.pid, None)
        if rank is None:
            return
        self.ends[rank] = end
        if end.code and rank not in self.asked and self._end_by_s is None:
            # As the agent does: of a rank that was killed, no other can have failed before.
            settle_s = SETTLE_S if end.code > 0 else 0
            self.outcome, self._end_by_s = "failed", time.monotonic() + settle_s

    def tick(self) -> None:
        now = time.monotonic()
        if self._end_by_s is not None:
            if now >= self._end_by_s and self.running:
                self._kill()
        elif now >= self._next_look_s and self.running:
            self._next_look_s = now + _LOOK_S
            if self._hangs(now):
                self.outcome = "stopped"
                self._ask_for_stacks()
                self._end_by_s = time.monotonic() + _STACKS_S

    def _hangs(self, now_s: float) -> bool:
        rings = sorted((self.job.folder / "rings" / "attempt-0").glob("rank-*.ring"))
        ops = tuple(map(newest_ops, rings))
        is_waiting = any(ring_format.blocks(ring_format.RECORD.unpack(op)) for of_rank in ops for op in of_rank)
        is_runnable = any(_state(pid) in _RUNNABLE for pid in self.running)
        ticks = sum(map(_cpu_ticks, self.running))
        return self._activity.hangs(Look(now_s, (*self.running, *ops), ticks, is_runnable, is_waiting))

    def _ask_for_stacks(self) -> None:
        """Returns when all ranks have begun to write them: on a busy machine that takes a while."""
        asked = []
        for pid, rank in self.running.items():
            ring = self.job.folder / "rings" / "attempt-0" / f"rank-{rank}.ring"
            if _state(pid) == "T":
                self.causes[rank] = "was stopped (SIGSTOP)"
            elif self.job.is_recorded and is_listening(pid, ring):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, ASK)
                asked.append(ring.with_suffix(".stacks"))
        deadline_s = time.monotonic() + _MOST_STACKS_S
        while time.monotonic() < deadline_s and not all(path.stat().st_size for path in asked):
            time.sleep(0.01)

    def _kill(self) -> None:
        """Whole sessions: a rank may have children."""
        for pid, rank in self.running.items():
            self.asked.add(rank)
            process_group.send(pid, signal.SIGKILL)
        self._end_by_s = time.monotonic() + _KILL_S  # then once more

    def close(self) -> Ended:
        """Write what the launcher would write."""
        outcome = self.outcome or "ok"
        attempt = {
            "attempt": 0,
            "world_size": self.job.world_size,
            "exit_codes": {str(rank): end.code for rank, end in self.ends.items()},
            "ended_ns": {str(rank): end.ended_ns for rank, end in self.ends.items()},
            "asked": {str(rank): True for rank in self.asked},
            "causes": {str(rank): cause for rank, cause in self.causes.items()},
        }
        seconds = round(time.monotonic() - self._began_s, 3)
        facts = {"command": [str(self.job.script)], "attempts": [attempt], "outcome": outcome, "seconds": seconds}
        (self.job.folder / "run.json").write_text(json.dumps(facts))
        codes = {rank: end.code for rank, end in self.ends.items()}
        return Ended(self.job, outcome, codes, seconds)


def _state(pid: int) -> str:
    return (_stat(pid) or ["?"])[0]


def _cpu_ticks(pid: int) -> int:
    stat = _stat(pid)
    return int(stat[11]) + int(stat[12]) if len(stat) > 12 else 0


def _stat(pid: int) -> list[str]:
    """The fields after the name of the process: its state first."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
