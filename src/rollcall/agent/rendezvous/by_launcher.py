"""The rendezvous of a run with one launcher for all hosts: the launcher says when and where each attempt begins.

A RendezvousHandler of torch elastic. The launcher gets the messages of all agents, and decides which hosts take part,
which one is the master, and whether another attempt follows.
"""

import os
from dataclasses import replace

from torch.distributed import HashStore, Store
from torch.distributed.elastic.rendezvous import RendezvousGracefulExitError, RendezvousInfo, RendezvousStoreInfo

from rollcall.agent.dispatcher import Dispatcher
from rollcall.agent.host_questions import HostQuestions
from rollcall.agent.monitoring.hang_report import HangReport
from rollcall.agent.rendezvous.store import Handler, serve_store
from rollcall.ports import listen
from rollcall.protocol.channel import Channel
from rollcall.protocol.messages import Begin, Done, Finish, Standstill
from rollcall.protocol.plan import LOOPBACK


class LauncherRendezvous(Handler):
    def __init__(self, channel: Channel, dispatcher: Dispatcher, questions: HostQuestions) -> None:
        self._channel, self._dispatcher, self._questions = channel, dispatcher, questions
        self._done = -1
        self._store: Store | None = None
        self._place: Begin | None = None

    @property
    def place(self) -> Begin:
        """This host's place in the world of this attempt."""
        assert self._place is not None, "asked before the first attempt"
        return self._place

    @property
    def attempt(self) -> int:
        return self._place.attempt if self._place else -1

    @property
    def attempt_of_world(self) -> int:
        """The number of the attempt for all ranks. A host that joined later has counted fewer attempts."""
        return self.attempt

    def next_rendezvous(self) -> RendezvousInfo:
        self._store = None  # that of the last attempt
        message = self._dispatcher.attempts.get()
        if isinstance(message, Finish):
            raise RendezvousGracefulExitError("the run is over")
        self._place = self._agree(message)
        master = RendezvousStoreInfo(self._place.master_addr, self._place.master_port)
        # Elastic's own store has nothing to carry: each host knows its place.
        return RendezvousInfo(HashStore(), self._place.node_rank, self._place.nnodes, master)

    def _agree(self, begin: Begin) -> Begin:
        """The place of this host, as the launcher says. The master serves the store of the ranks."""
        if begin.node_rank != 0:
            return begin
        reserved = self._questions.take_listeners()
        if begin.nnodes == 1:  # no other host had to find this one
            for fd in reserved:  # of an attempt with more hosts that never began
                os.close(fd)
            listener = listen(LOOPBACK, begin.master_port)
            begin = replace(begin, master_port=listener.getsockname()[1])
            reserved = [listener.detach()]
        self._store = serve_store(LOOPBACK, begin.master_port, reserved[0])
        return begin

    def num_nodes_waiting(self) -> int:
        """More than zero when the attempt has failed elsewhere."""
        return int(self._dispatcher.cancelled == self.attempt)

    def all_done(self, wait_s: float) -> bool:
        """Called when this host's ranks are done, until it is true: the launcher ends the run for all hosts."""
        if self._done < self.attempt:
            self._done = self.attempt
            self._channel.send(Done(self.attempt))
        return self._dispatcher.finished.wait(wait_s)

    def announce_failure(self, sentence: str) -> None:
        """The launcher has heard how the ranks ended, and tells the other hosts."""

    def announce_stop(self, sentence: str) -> None:
        """The launcher itself has stopped the run."""

    def failed_elsewhere(self) -> str:
        """Why another host failed, where the launcher does not know it."""
        return ""

    def standstill_of_all(self, mine: Standstill) -> Standstill:
        """Returns that of this host: the launcher puts those of all hosts together."""
        return mine

    def reports_of_others(self, mine: HangReport) -> list[HangReport]:
        """Returns nothing: there are no hosts that the launcher does not lead."""
        return []

    def leave(self) -> None:
        self._store = None
