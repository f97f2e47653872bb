"""Torch elastic's agent, with ranks from the fork server.

torch elastic implements the phases of a worker group: rendezvous, rank assignment, monitoring, restarts. This module
implements its four abstract methods: start, monitor, stop, shut down.
"""

import contextlib
import os
import signal
import socket
import time
from typing import Any

from torch.distributed import Store
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
from torch.distributed.elastic.utils import macros

from rollcall.addresses import interface_env
from rollcall.agent.dispatcher import Dispatcher
from rollcall.agent.host_folder import HostFolder
from rollcall.agent.host_questions import HostQuestions
from rollcall.agent.monitoring.flight_recorder import FlightRecorder
from rollcall.agent.monitoring.gpu_samples import GpuSamples
from rollcall.agent.monitoring.hang_detector import HangDetector
from rollcall.agent.monitoring.output import OutputPump
from rollcall.agent.monitoring.stopped_ranks import StoppedRanks
from rollcall.agent.rank_answers import RankAnswers
from rollcall.agent.rank_connections import RankConnections
from rollcall.agent.rendezvous.by_hand import ByHandRendezvous
from rollcall.agent.rendezvous.by_launcher import LauncherRendezvous
from rollcall.errors import RankError
from rollcall.linux import process_group, process_tree, signals
from rollcall.protocol.channel import Channel
from rollcall.protocol.exit_codes import how_it_ended
from rollcall.protocol.log_files import RankLogs
from rollcall.protocol.messages import (
    STDERR,
    STDOUT,
    AttemptOver,
    Ended,
    Note,
    Started,
)
from rollcall.protocol.plan import Plan
from rollcall.protocol.timing import SETTLE_S
from rollcall.protocol.torchrun_env import rank_env
from rollcall.record import ring_format
from rollcall.worker.fork_server import ForkServers

_TERM_GRACE_S = 3.0  # between SIGTERM and SIGKILL, for ranks that ignore SIGINT
_HELPERS_S = 0.5  # for what ends by itself once its rank is gone
_KILL_GRACE_S = 10.0  # the kernel may need a moment to free a large rank


class WorkerGroupAgent(SimpleElasticAgent):
    """Runs this host's part of a plan."""

    def __init__(
        self,
        plan: Plan,
        channel: Channel,
        dispatcher: Dispatcher,
        questions: HostQuestions,
        folder: HostFolder,
        servers: ForkServers,
        stdin_fd: int,
    ) -> None:
        self._plan, self._channel, self._folder, self._servers = plan, channel, folder, servers
        self._stdin_fd = stdin_fd
        self._handler = (
            ByHandRendezvous(channel, dispatcher, questions, plan, plan.by_hand)
            if plan.by_hand is not None
            else LauncherRendezvous(channel, dispatcher, questions)
        )
        self._output = OutputPump(channel, keeps_logs=folder.shared)
        self.connections = RankConnections(channel)
        self._rank_of: dict[int, Worker] = {}  # by pid: the ranks that run
        self._failed: dict[int, ProcessFailure] = {}
        self._stop_with: signal.Signals | None = None
        self._stopped_ranks = StoppedRanks()
        # A warm rank is recorded from its start on, a fresh one from init_process_group on, which it may never call.
        least_rings = plan.slots if plan.start == "warm" else 0
        self._hang_detector = HangDetector(
            folder.path, plan.hang_after_s, least_rings=least_rings, of_all=self._handler.standstill_of_all
        )
        self._flight_recorder = FlightRecorder(folder.path)
        self._gpu_samples = GpuSamples()
        self.answers = RankAnswers(
            channel, folder, self._handler, self._rank_of, self._hang_detector, self._flight_recorder
        )
        super().__init__(
            WorkerSpec(
                role=plan.role,
                local_world_size=plan.slots,
                rdzv_handler=self._handler,
                entrypoint=plan.program.target,
                args=plan.program.args,
                max_restarts=1,
                monitor_interval=0.001,  # _monitor_workers itself waits for the next event
            )
        )

    def serve(self) -> int:
        """Run to the end of the last attempt; the exit code says only whether all was well here."""
        try:
            result = self.run()
            return 1 if result is None or result.is_failed() else 0
        except SignalException as stopped:
            self._handler.announce_stop(f"the run was stopped on {socket.gethostname()}")
            return 128 + stopped.sigval
        finally:
            self._output.close()
            self._gpu_samples.end()
            self._folder.send_back(self._channel)
            self._flight_recorder.close()
            self._handler.leave()

    def stop(self, number: int, now: bool) -> None:
        """Called from the thread that listens to the launcher."""
        self._stop_with = signal.Signals(number)
        if now:
            self._signal(signal.SIGKILL)
        elif not self._rank_of:
            # No rank runs: the main thread may be waiting for other hosts, and need not finish that.
            os._exit(128 + number)

    def forward(self, number: int) -> None:
        """A signal that is for the ranks. One that has no handler for it would be ended by it, and gets none."""
        for pid in list(self._rank_of):
            if signals.is_caught(number, pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def _initialize_workers(self, worker_group: WorkerGroup) -> None:
        self._raise_if_stopped()  # asked while an attempt was failing: no other one follows
        super()._initialize_workers(worker_group)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, int]:
        self._remaining_restarts = 1  # for elastic there is always another attempt: the launcher counts
        self._failed = {}
        if self._plan.record:
            self._gpu_samples.begin(self._folder.rings(self._handler.attempt))
        pids = {worker.local_rank: self._start(worker_group, worker) for worker in worker_group.workers}
        self._channel.send(
            Started(
                attempt=self._handler.attempt,
                host=socket.gethostname(),
                node_rank=self._handler.place.node_rank,
                world_size=worker_group.workers[0].world_size,
                master=f"{worker_group.master_addr}:{worker_group.master_port}",
                pids={str(w.global_rank): pids[w.local_rank] for w in worker_group.workers},
            )
        )
        return pids

    def _start(self, group: WorkerGroup, worker: Worker) -> int:
        rank, attempt = worker.global_rank, self._handler.attempt
        logs = RankLogs.of(self._plan, self._folder.path, attempt, rank, worker.local_rank)
        out = self._output.pipe(rank, STDOUT, logs.stdout)
        err = self._output.pipe(rank, STDERR, logs.stderr)
        program = self._plan.program
        args = macros.substitute(list(program.args), str(worker.local_rank))
        request = {
            "env": {**self._env(group, worker), "TORCHELASTIC_ERROR_FILE": str(logs.error)},
            "cwd": self._plan.cwd,
            "program": {"kind": program.kind, "target": program.target, "args": args},
            "start": self._plan.start,
            "numa_binding": self._plan.numa_binding,
            "local_rank": worker.local_rank,
            "record": self._recording(worker) if self._plan.record else None,
            "agent_connection": {"address": self.connections.address, "rank": rank},
        }
        pid = self._servers.start(request, (self._stdin_fd, out, err))
        os.close(out)
        os.close(err)
        self._rank_of[pid] = worker
        return pid

    def _recording(self, worker: Worker) -> dict[str, Any]:
        return {
            "folder": str(self._folder.path),
            "rank": worker.global_rank,
            "world_size": worker.world_size,
            "attempt": self._handler.attempt,
        }

    def _env(self, group: WorkerGroup, worker: Worker) -> dict[str, str]:
        """What torchrun tells its ranks, and the folder of the run."""
        env: dict[str, object] = {
            **rank_env(
                rank=worker.global_rank,
                world_size=worker.world_size,
                local_rank=worker.local_rank,
                local_world_size=self._plan.slots,
                node_rank=group.group_rank or 0,
                nnodes=group.group_world_size or 1,
                master_addr=group.master_addr or "",
                master_port=group.master_port or 0,
                run_id=self._plan.run_id,
                attempt=self._handler.attempt_of_world,
                max_restarts=self._plan.max_restarts,
            ),
            "ROLE_RANK": worker.role_rank,
            "ROLE_NAME": self._plan.role,
            "ROLE_WORLD_SIZE": worker.role_world_size,
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", 1),
            "ROLLCALL_RUN": self._folder.path,
            **interface_env(self._handler.place.interface, forced=self._plan.interface is not None),
        }
        if self._plan.record:
            env |= self._flight_recorder.env(self._handler.attempt)
        if self._plan.record and self._plan.start == "fresh":
            env["ROLLCALL_RECORD"] = self._folder.path  # rollcall_autostart records there
        if self._plan.ring_mb is not None:
            env[ring_format.MB_VARIABLE] = self._plan.ring_mb
        if self._plan.virtual_local_rank:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
            env["CUDA_VISIBLE_DEVICES"] = visible[worker.local_rank] if any(visible) else worker.local_rank
            env["LOCAL_RANK"] = 0
        return {name: str(value) for name, value in env.items()}

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        interval_s = self._plan.monitor_interval_s
        self._note_ends(interval_s if self._rank_of else 0)
        self._raise_if_stopped()  # after the look: ranks that ended just now may have ended of it, and have not failed
        self._end_stopped_ranks()
        if self._plan.record and (still := self._hang_detector.check(self._handler.attempt, list(self._rank_of))):
            self._channel.send(still)
        if self._failed:
            self._wait_for_other_failures()
            self._tell_other_hosts()
            return RunResult(WorkerState.FAILED, failures=self._failed)
        if not self._rank_of and self._handler.all_done(interval_s):
            return RunResult(WorkerState.SUCCEEDED, return_values={w.global_rank: None for w in worker_group.workers})
        return RunResult(WorkerState.HEALTHY)

    def _raise_if_stopped(self) -> None:
        if self._stop_with is not None:
            self.answers.ask_before_end()
            raise SignalException("asked to stop", self._stop_with)

    def _note_ends(self, timeout_s: float, asked: bool = False) -> None:
        """Notice which ranks ended, and pass on what they printed before."""
        try:
            ends = self._servers.ends(timeout_s)
        except EOFError as error:
            raise RankError("the fork server was killed, and its ranks with it: start the run again") from error
        asked = asked or self._stop_with is not None
        for end in ends:
            worker = self._rank_of.pop(end.pid)
            self._output.drain(worker.global_rank)
            cause = self._stopped_ranks.cause_of(end.pid)
            self._channel.send(Ended(self._handler.attempt, worker.global_rank, end.code, end.ended_ns, asked, cause))
            if end.code != 0 and not asked:
                self._failed[worker.global_rank] = ProcessFailure(worker.local_rank, end.pid, end.code, "")

    def _end_stopped_ranks(self) -> None:
        """All others wait for a rank that was stopped, and no error would say why."""
        for pid, warning in self._stopped_ranks.check(self._rank_of):
            if warning:
                rank = self._rank_of[pid].global_rank
                self._channel.send(Note(f"rank {rank} on {socket.gethostname()} {warning}"))
            else:
                os.kill(pid, signal.SIGKILL)

    def _wait_for_other_failures(self) -> None:
        """A fresh interpreter takes its time to end: who failed first need not be gone first."""
        if all(failure.exitcode >= 0 for failure in self._failed.values()):
            deadline = time.monotonic() + SETTLE_S
            while self._rank_of and (left := deadline - time.monotonic()) > 0:
                self._note_ends(left)

    def _tell_other_hosts(self) -> None:
        rank, failure = next(iter(self._failed.items()))
        sentence = f"rank {rank} on {socket.gethostname()} {how_it_ended(failure.exitcode)}"
        self._handler.announce_failure(sentence)

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        self._shutdown()
        self._gpu_samples.end()
        self._folder.send_back(self._channel)
        self._channel.send(AttemptOver(self._handler.attempt, self._handler.failed_elsewhere()))

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        """End the ranks, then whatever they started and left behind."""
        steps = {death_sig: self._plan.grace_s, signal.SIGKILL: _KILL_GRACE_S}
        if death_sig == signal.SIGINT:
            steps = {signal.SIGINT: self._plan.grace_s, signal.SIGTERM: _TERM_GRACE_S, signal.SIGKILL: _KILL_GRACE_S}
        for number, grace_s in steps.items():
            self._signal(number)
            self._wait(grace_s)
        process_tree.wait_for_all(_HELPERS_S, spared=self._servers.pids)
        left = process_tree.end_all(_TERM_GRACE_S, spared=self._servers.pids)
        if left and self._handler.attempt >= 0:  # before the first attempt there are only forks that wait for one
            self._channel.send(Note(f"ended what the ranks had left running: {process_tree.in_words(left)}"))

    def _wait(self, grace_s: float) -> None:
        deadline = time.monotonic() + grace_s
        while self._rank_of and (left := deadline - time.monotonic()) > 0:
            self._note_ends(min(left, self._plan.monitor_interval_s), asked=True)

    def _signal(self, number: signal.Signals) -> None:
        for pid in list(self._rank_of):
            for each in (number, signal.SIGCONT):  # a stopped rank gets no other signal until it continues
                process_group.send(pid, each)

    def _assign_worker_ranks(self, store: Store, group_rank: int, group_world_size: int, spec: Any) -> list[Worker]:
        """Each host knows its place: elastic's exchange of sizes through a store is not needed."""
        place = self._handler.place
        ranks = range(place.first_rank, place.first_rank + spec.local_world_size)
        return [
            Worker(local_rank, rank, rank, place.world_size, place.world_size) for local_rank, rank in enumerate(ranks)
        ]

    def _exit_barrier(self) -> None:
        """The launcher ends the run for all hosts together."""

    def _construct_event(self, state: str, source: EventSource, *_args: Any, **_kwargs: Any) -> Event:
        """Elastic's event, without its look-up of our full name: where DNS does not answer, that is 5 s a rank."""
        return Event(f"torchelastic.worker.status.{state}", source=source)
