"""Torch elastic's agent, with ranks from the fork server.

Elastic brings the life of a worker group: rendezvous, rank assignment, monitoring, restarts. We fill
in the four methods that it leaves open: start, monitor, stop, shut down.
"""

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, cast

from torch.distributed.elastic.agent.server.api import (
    RunResult,
    SimpleElasticAgent,
    Worker,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.events import Event, EventSource
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousHandler
from torch.distributed.elastic.utils import macros

from rollcall.errors import RankError
from rollcall.launch.host import family, routes
from rollcall.launch.host.forkserver import ForkServers
from rollcall.launch.host.hangs import HangWatch
from rollcall.launch.host.output import STDERR, STDOUT, OutputPump
from rollcall.launch.host.stalls import Stalls
from rollcall.launch.host.tails import RingTails
from rollcall.launch.messages import AttemptOver, Ended, Looked, Note, Shown, Started, Wire
from rollcall.launch.plan import Plan
from rollcall.launch.report import SETTLE_S
from rollcall.launch.runs import RankLogs, RunHere
from rollcall.launch.words import how_it_ended
from rollcall.record.stacks import ASK, is_listening

_STACKS_S = 0.1  # for ranks to write down where they are
_LOOK_S = 0.1  # at most so long until a request to stop, or another host's failure, is noticed
_TERM_GRACE_S = 3.0  # between SIGTERM and SIGKILL, for those who did not heed SIGINT
_HELPERS_S = 0.5  # for what ends by itself once its rank is gone
_KILL_GRACE_S = 10.0  # the kernel may need a moment to free a large rank


class Meeting(Protocol):
    """Where agents agree on each attempt, beyond what elastic asks of a RendezvousHandler."""

    @property
    def attempt(self) -> int: ...

    @property
    def node_rank(self) -> int: ...

    def restarts_left(self, most: int) -> int: ...

    def announce_failure(self, sentence: str, final: bool) -> None: ...

    def all_done(self) -> bool: ...

    def leave(self) -> None: ...


class HostAgent(SimpleElasticAgent):
    """Runs this host's part of a plan."""

    def __init__(
        self, meeting: Meeting, plan: Plan, run: RunHere, servers: ForkServers, wire: Wire, stdin_fd: int
    ) -> None:
        self._meeting, self._plan, self._run, self._servers, self._wire = meeting, plan, run, servers, wire
        self._stdin_fd = stdin_fd
        self._output = OutputPump(wire, keeps_logs=run.shared)
        self._rank_of: dict[int, Worker] = {}  # by pid: the ranks that run
        self._failed: dict[int, ProcessFailure] = {}
        self._stop_with: signal.Signals | None = None
        self._stalls = Stalls()
        self._hangs = HangWatch(run.folder, plan.hang_after_s)
        self._tails = RingTails(run.folder)
        self._sending = threading.Lock()  # of the rings: a part of before must not come after the whole
        super().__init__(
            WorkerSpec(
                role=plan.role,
                local_world_size=plan.slots,
                rdzv_handler=cast(RendezvousHandler, meeting),
                entrypoint=plan.program.target,
                args=plan.program.args,
                max_restarts=plan.max_restarts,
                monitor_interval=0.001,  # _monitor_workers itself waits for the next event
            )
        )

    def serve(self) -> int:
        """Run to the end of the last attempt; the exit code says only whether all was well here."""
        try:
            result = self.run()
            return 1 if result is None or result.is_failed() else 0
        except SignalException as stopped:
            self._meeting.announce_failure(f"the run was stopped on {socket.gethostname()}", final=True)
            return 128 + stopped.sigval
        finally:
            self._output.close()
            self._send_back()
            self._meeting.leave()

    def stop(self, number: int, now: bool) -> None:
        """Called from the thread that listens to the launcher."""
        self._stop_with = signal.Signals(number)
        if now:
            self._signal(signal.SIGKILL)
        elif not self._rank_of:
            # No rank runs: the main thread may be waiting for other hosts, and need not finish that.
            os._exit(128 + number)

    def _initialize_workers(self, worker_group: WorkerGroup) -> None:
        self._heed_stop()  # asked while an attempt was failing: no other one follows
        super()._initialize_workers(worker_group)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, int]:
        self._remaining_restarts = self._meeting.restarts_left(self._plan.max_restarts)
        self._failed = {}
        pids = {worker.local_rank: self._start(worker_group, worker) for worker in worker_group.workers}
        self._wire.send(
            Started(
                attempt=self._meeting.attempt,
                host=socket.gethostname(),
                node_rank=self._meeting.node_rank,
                world_size=worker_group.workers[0].world_size,
                master=f"{worker_group.master_addr}:{worker_group.master_port}",
                pids={str(w.global_rank): pids[w.local_rank] for w in worker_group.workers},
            )
        )
        return pids

    def _start(self, group: WorkerGroup, worker: Worker) -> int:
        logs = RankLogs.of(self._plan, self._run.folder, self._meeting.attempt, worker.global_rank, worker.local_rank)
        out = self._output.pipe(worker.global_rank, STDOUT, logs.stdout)
        err = self._output.pipe(worker.global_rank, STDERR, logs.stderr)
        program = self._plan.program
        args = macros.substitute(list(program.args), str(worker.local_rank))
        request = {
            "env": {**self._env(group, worker), "TORCHELASTIC_ERROR_FILE": str(logs.error)},
            "cwd": self._plan.cwd,
            "program": {"kind": program.kind, "target": program.target, "args": args},
            "start": self._plan.start,
            "record": self._recording(worker) if self._plan.record else None,
        }
        pid = self._servers.start(request, (self._stdin_fd, out, err))
        os.close(out)
        os.close(err)
        self._rank_of[pid] = worker
        return pid

    def _recording(self, worker: Worker) -> dict[str, Any]:
        return {
            "folder": str(self._run.folder),
            "rank": worker.global_rank,
            "world_size": worker.world_size,
            "attempt": self._meeting.attempt,
        }

    def _env(self, group: WorkerGroup, worker: Worker) -> dict[str, str]:
        """What torchrun tells its ranks, and the folder of the run."""
        env = {
            "RANK": worker.global_rank,
            "LOCAL_RANK": worker.local_rank,
            "GROUP_RANK": group.group_rank,
            "ROLE_RANK": worker.role_rank,
            "ROLE_NAME": self._plan.role,
            "LOCAL_WORLD_SIZE": self._plan.slots,
            "WORLD_SIZE": worker.world_size,
            "GROUP_WORLD_SIZE": group.group_world_size,
            "ROLE_WORLD_SIZE": worker.role_world_size,
            "MASTER_ADDR": group.master_addr,
            "MASTER_PORT": group.master_port,
            "TORCHELASTIC_RESTART_COUNT": self._meeting.attempt,
            "TORCHELASTIC_MAX_RESTARTS": self._plan.max_restarts,
            "TORCHELASTIC_RUN_ID": self._plan.run_id,
            "TORCHELASTIC_USE_AGENT_STORE": True,
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", 1),
            "ROLLCALL_RUN": self._run.folder,
            **self._network_env(self._plan),
        }
        if self._plan.record and self._plan.start == "fresh":
            env["ROLLCALL_RECORD"] = 1  # for rollcall.init, should the program call it
        if self._plan.virtual_local_rank:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
            env["CUDA_VISIBLE_DEVICES"] = visible[worker.local_rank] if any(visible) else worker.local_rank
            env["LOCAL_RANK"] = 0
        return {name: str(value) for name, value in env.items()}

    def _network_env(self, plan: Plan) -> dict[str, str]:
        """What the ranks need to know of the network, where somebody has looked at it."""
        return {}

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        self._note_ends(_LOOK_S if self._rank_of else 0)
        self._heed_stop()  # after the look: ranks that ended just now may have ended of it, and have not failed
        self._end_the_stalled()
        if self._plan.record and (still := self._hangs.look(self._meeting.attempt)):
            self._wire.send(still)
        if self._failed:
            self._hear_the_others()
            self._tell_other_hosts()
            return RunResult(WorkerState.FAILED, failures=self._failed)
        if not self._rank_of and self._meeting.all_done():
            return RunResult(WorkerState.SUCCEEDED, return_values={w.global_rank: None for w in worker_group.workers})
        return RunResult(WorkerState.HEALTHY)

    def _heed_stop(self) -> None:
        if self._stop_with is not None:
            self.ask_for_stacks()
            raise SignalException("asked to stop", self._stop_with)

    def _note_ends(self, timeout_s: float, asked: bool = False) -> None:
        """Learn which ranks ended, and pass on what they said before."""
        try:
            ends = self._servers.ends(timeout_s)
        except EOFError as error:
            raise RankError("the fork server was killed, and its ranks with it: start the run again") from error
        asked = asked or self._stop_with is not None
        for end in ends:
            worker = self._rank_of.pop(end.pid)
            self._output.drain(worker.global_rank)
            cause = self._stalls.cause_of(end.pid)
            self._wire.send(Ended(self._meeting.attempt, worker.global_rank, end.code, end.ended_ns, asked, cause))
            if end.code != 0 and not asked:
                self._failed[worker.global_rank] = ProcessFailure(worker.local_rank, end.pid, end.code, "")

    def _end_the_stalled(self) -> None:
        """A rank that somebody stopped keeps everyone waiting, and nobody would say why."""
        for pid, warning in self._stalls.look(self._rank_of):
            if warning:
                rank = self._rank_of[pid].global_rank
                self._wire.send(Note(f"rank {rank} on {socket.gethostname()} {warning}"))
            else:
                os.kill(pid, signal.SIGKILL)

    def ask_for_stacks(self) -> None:
        """Where the ranks are, before they are ended: what keeps a run waiting may be nowhere else."""
        rings = self._run.folder / "rings" / f"attempt-{self._meeting.attempt}"
        ranks = list(self._rank_of.items())
        recorded = [pid for pid, worker in ranks if (rings / f"rank-{worker.global_rank}.ring").exists()]
        asked = [pid for pid in recorded if is_listening(pid)]
        for pid in asked:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, ASK)
        time.sleep(_STACKS_S if asked else 0)

    def show_where_they_are(self, others: dict[str, str]) -> None:
        """To the launcher, while they run on; and which hosts are still to be reached from here."""
        self.ask_for_stacks()
        self._unless_sent_back(lambda: self._run.send_copies(self._wire, "rings"))
        self._wire.send(Shown(routes.unreachable(others)))

    def show_what_is_new(self, attempt: int) -> None:
        """To somebody who watches from where the rings are not seen. In a thread of its own: on a slow line it takes
        its time, and whoever listens to the launcher must go on listening."""

        def show() -> None:
            with contextlib.suppress(OSError):  # the launcher is gone; that is noticed where it is listened to
                self._unless_sent_back(lambda: self._tails.send(self._wire, attempt))
                self._wire.send(Looked())

        threading.Thread(target=show, name="tails", daemon=True).start()

    def _unless_sent_back(self, send: Callable[[], None]) -> None:
        """Parts of the rings: not while the whole is on its way, nor behind it."""
        if self._sending.acquire(blocking=False):
            try:
                send()
            finally:
                self._sending.release()

    def _send_back(self) -> None:
        with self._sending:
            self._run.send_back(self._wire)

    def _hear_the_others(self) -> None:
        """A fresh interpreter takes its time to end: who failed first need not be gone first."""
        if all(failure.exitcode >= 0 for failure in self._failed.values()):
            deadline = time.monotonic() + SETTLE_S
            while self._rank_of and (left := deadline - time.monotonic()) > 0:
                self._note_ends(left)

    def _tell_other_hosts(self) -> None:
        rank, failure = next(iter(self._failed.items()))
        sentence = f"rank {rank} on {socket.gethostname()} {how_it_ended(failure.exitcode)}"
        self._meeting.announce_failure(sentence, final=self._remaining_restarts == 0)

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        self._shutdown()
        self._send_back()
        self._wire.send(AttemptOver(self._meeting.attempt))

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        """End the ranks, then whatever they started and left behind."""
        steps = {death_sig: self._plan.grace_s, signal.SIGKILL: _KILL_GRACE_S}
        if death_sig == signal.SIGINT:
            steps = {signal.SIGINT: self._plan.grace_s, signal.SIGTERM: _TERM_GRACE_S, signal.SIGKILL: _KILL_GRACE_S}
        for number, grace_s in steps.items():
            self._signal(number)
            self._wait(grace_s)
        family.wait_for_all(_HELPERS_S, spared=self._servers.pids)
        left = family.end_all(_TERM_GRACE_S, spared=self._servers.pids)
        if left:
            self._wire.send(Note(f"ended what the ranks had left running: {', '.join(left)}"))

    def _wait(self, grace_s: float) -> None:
        deadline = time.monotonic() + grace_s
        while self._rank_of and (left := deadline - time.monotonic()) > 0:
            self._note_ends(min(left, _LOOK_S), asked=True)

    def _signal(self, number: signal.Signals) -> None:
        for pid in list(self._rank_of):
            for each in (number, signal.SIGCONT):  # a stopped rank hears nothing until it goes on
                try:
                    # The whole group, as a terminal does: workers of a DataLoader hear it too.
                    os.killpg(pid, each)
                except ProcessLookupError:  # so young that it has no group of its own yet, or gone
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, each)

    def _construct_event(self, state: str, source: EventSource, *_args: Any, **_kwargs: Any) -> Event:
        """Elastic's event, without its look-up of our full name: where DNS does not answer, that is 5 s a rank."""
        return Event(f"torchelastic.worker.status.{state}", source=source)
