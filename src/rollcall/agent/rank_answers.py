"""Answers the launcher's questions about the ranks of this host: where they are, what they have recorded, what they
are asked to do.

Each answer is made in a thread of its own: it may have to wait for ranks or other hosts, and the launcher's messages
must be read at the same time.
"""

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server.api import Worker

from rollcall.agent import connectivity
from rollcall.agent.host_folder import HostFolder
from rollcall.agent.monitoring import hang_report, idle_ranks, nccl_ras, rank_requests, stack_collection, stack_requests
from rollcall.agent.monitoring.flight_recorder import FlightRecorder
from rollcall.agent.monitoring.hang_detector import HangDetector
from rollcall.agent.monitoring.ring_upload import RingUpload
from rollcall.agent.rendezvous.by_hand import ByHandRendezvous
from rollcall.agent.rendezvous.by_launcher import LauncherRendezvous
from rollcall.linux import process_tree
from rollcall.protocol.channel import Channel
from rollcall.protocol.devices import visible_gpus
from rollcall.protocol.messages import Note, RankAnswered, RingsSent, StacksCollected, StacksDumped
from rollcall.runs import DUMPS, NCCL_RAS


class RankAnswers:
    """`workers` are the ranks that run, by pid; it changes while they start and end."""

    def __init__(
        self,
        channel: Channel,
        folder: HostFolder,
        rendezvous: LauncherRendezvous | ByHandRendezvous,
        workers: Mapping[int, Worker],
        hang_detector: HangDetector,
        flight_recorder: FlightRecorder,
    ) -> None:
        self._channel, self._folder, self._rendezvous, self._workers = channel, folder, rendezvous, workers
        self._hang_detector, self._flight_recorder = hang_detector, flight_recorder
        self._ring_upload = RingUpload(folder.path)
        self._time_limit_threads: list[threading.Thread] = []  # tell ranks how long ops may take

    def _pids(self) -> dict[int, int]:
        """By rank."""
        return {worker.global_rank: pid for pid, worker in list(self._workers.items())}

    def ask_before_end(self) -> None:
        """Have ranks write their stacks before they are ended: what keeps a run waiting may be visible nowhere else."""
        self._ask(stack_requests.ask_before_end)

    def _ask(self, ask: Callable[[Mapping[int, Path]], None]) -> None:
        below = {process.pid for process in process_tree.descendants()}
        with self._hang_detector.sleeping.are_asked():
            ask(stack_requests.find_rings(self._folder.path, self._rendezvous.attempt, below))

    def report_stacks(self, others: dict[str, str]) -> None:
        """Sends what tells about a hang: stacks, idle ranks, hosts that can still be reached from here."""
        threading.Thread(target=self._report_stacks, args=(others,), name="stacks", daemon=True).start()

    def _report_stacks(self, others: dict[str, str]) -> None:
        idle = idle_ranks.find(self._pids())
        self._ask(stack_requests.ask)
        self._flight_recorder.ask(self._rendezvous.attempt, list(self._pids()))
        if visible_gpus():
            rings = self._folder.rings(self._rendezvous.attempt)
            nccl_ras.ask(rings / NCCL_RAS.format(host=socket.gethostname()))
        self._folder.send_copies(self._channel, "rings")
        self._folder.send_copies(self._channel, DUMPS)
        here = hang_report.make(self._folder.path, self._rendezvous.attempt, idle)
        reports = self._rendezvous.reports_of_others(here)
        dumped = StacksDumped(
            connectivity.unreachable(others),
            {rank: is_idle for each in reports for rank, is_idle in each.idle.items()} | idle,
            [ring for each in reports for ring in each.readable_rings()],
            hang_report.computing_unrecorded([here, *reports]),
        )
        with contextlib.suppress(OSError):  # the launcher is gone; the heartbeat notices that
            for sentence in hang_report.unread_recordings([here, *reports]):
                self._channel.send(Note(sentence))
            self._channel.send(dumped)

    def send_stacks(self, number: int) -> None:
        """Answers the question where the ranks are. py-spy may take seconds."""
        pids = self._pids()

        def send() -> None:
            rings = stack_requests.find_rings(self._folder.path, self._rendezvous.attempt, pids.values())
            found = stack_collection.collect(pids, rings)
            with contextlib.suppress(OSError):  # the launcher is gone; the heartbeat notices that
                self._channel.send(StacksCollected(number, {str(rank): asdict(each) for rank, each in found.items()}))

        threading.Thread(target=send, name="stacks", daemon=True).start()

    def ask_rank(self, rank: int, number: int, request: dict[str, Any]) -> threading.Thread:
        """Have a rank do something, and send its answer. It may take minutes."""
        pid = self._pids().get(rank, 0)

        def send() -> None:
            ring = stack_requests.find_rings(self._folder.path, self._rendezvous.attempt, [pid]).get(pid)
            if request["do"] == "attach" and ring is not None:
                self._wait_for_longer_limit(ring)
            answer = rank_requests.ask(ring, pid, number, request)
            if "file" in answer:  # it is beside the rings
                self._folder.send_copies(self._channel, "rings")
                answer["file"] = os.path.relpath(answer["file"], self._folder.path)
            with contextlib.suppress(OSError):  # the launcher is gone; the heartbeat notices that
                self._channel.send(RankAnswered(rank, number, answer))

        thread = threading.Thread(target=send, name="request", daemon=True)
        thread.start()
        return thread

    def _wait_for_longer_limit(self, ring: Path) -> None:
        """An op keeps the time limit that it began with. So a rank is stopped after its next op: the others have then
        begun the one in which they will wait for it with the longer limit."""
        for thread in self._time_limit_threads:
            thread.join()
        rank_requests.wait_for_next_op(ring)

    def note_debugging(self, is_on: bool) -> None:
        """While a rank of the run stands in a debugger, others wait for it: that is no hang, nor a reason to fail."""
        self._hang_detector.is_paused = is_on
        request = {"do": "wait-longer" if is_on else "wait-as-before"}
        self._time_limit_threads = [self.ask_rank(rank, -1, request) for rank in self._pids()]

    def send_new_records(self, attempt: int) -> None:
        """Serves a `watch` that cannot read the rings itself. On a slow connection it takes a while."""

        def send() -> None:
            with contextlib.suppress(OSError):  # the launcher is gone; the heartbeat notices that
                self._folder.unless_sent_back(lambda: self._ring_upload.send(self._channel, attempt))
                self._channel.send(RingsSent())

        threading.Thread(target=send, name="ring upload", daemon=True).start()
