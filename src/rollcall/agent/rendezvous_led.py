"""An agent among several that one launcher leads: it begins an attempt when told to, and where it is told to.

A RendezvousHandler like rendezvous.py, only that the launcher, which hears all agents, does the deciding:
who is there, who is the master, and whether another attempt follows.
"""

import os
import queue
import time
from typing import Any

from torch.distributed import HashStore, Store, TCPStore
from torch.distributed.elastic.agent.server.api import Worker
from torch.distributed.elastic.rendezvous import (
    RendezvousGracefulExitError,
    RendezvousInfo,
    RendezvousStoreInfo,
)

from rollcall.agent import connectivity
from rollcall.agent.rendezvous_store import Handler, serve_store
from rollcall.agent.worker_group import HostAgent
from rollcall.protocol.messages import Begin, Cancel, Close, Closed, Dismiss, Done, Message, Open, Ping, Pong, Try, Wire
from rollcall.protocol.plan import LOOPBACK, Plan

_LOOK_S = 0.1


class Guided(Handler):
    """What the launcher says becomes a rendezvous."""

    def __init__(self, wire: Wire, listener_fds: list[int]) -> None:
        self._wire = wire
        self._listener_fds = listener_fds  # of a door that was closed: the keeper's, if this host is the first master
        self._doors: list[connectivity.Door] = []
        self._said: queue.SimpleQueue[Begin | Dismiss] = queue.SimpleQueue()
        self._cancelled = -1
        self._dismissed = False
        self._done = -1
        self._store: Store | None = None
        self.begin: Begin | None = None

    @property
    def attempt(self) -> int:
        return self.begin.attempt if self.begin else -1

    @property
    def node_rank(self) -> int:
        assert self.begin is not None, "asked before the first attempt"
        return self.begin.node_rank

    def hear(self, message: Message) -> None:
        """Called from the thread that listens to the launcher."""
        match message:
            case Ping(sent_ns):
                self._wire.send(Pong(sent_ns, time.time_ns(), time.monotonic_ns()))
            case Begin():
                self._said.put(message)
            case Cancel(attempt):
                self._cancelled = attempt
            case Dismiss():
                self._dismissed = True
                self._said.put(message)
            case Open(attempt, port, token):
                self._close_doors()
                self._doors += connectivity.open_door(self._wire, attempt, port, token)
            case Close():
                self._listener_fds = [door.close().detach() for door in self._doors]
                self._doors = []
                self._wire.send(Closed())
            case Try(attempt, addresses, port, token):
                self._wire.send(connectivity.try_all(attempt, addresses, port, token))

    def next_rendezvous(self) -> RendezvousInfo:
        self._store = None  # that of the last attempt
        said = self._said.get()
        if isinstance(said, Dismiss):
            raise RendezvousGracefulExitError("dismissed")
        self.begin = said
        if said.node_rank == 0:
            self._store = self._serve(said.master_port)
        master = RendezvousStoreInfo(said.master_addr, said.master_port)
        # Elastic's own store has nothing to carry: the launcher has told each host all that there is to know.
        return RendezvousInfo(HashStore(), said.node_rank, said.nnodes, master)

    def _close_doors(self) -> None:
        """Those of an attempt that never began."""
        while self._doors:
            self._doors.pop().close().close()
        while self._listener_fds:
            os.close(self._listener_fds.pop())

    def _serve(self, port: int) -> TCPStore:
        """The store of this attempt's ranks, at the door that was tried from all other hosts."""
        return serve_store(LOOPBACK, port, self._listener_fds.pop())

    def restarts_left(self, most: int) -> int:
        """Always one, for elastic: the launcher counts."""
        return 1

    def announce_failure(self, sentence: str, final: bool) -> None:
        """The launcher has heard how the ranks ended, and tells the others."""

    def num_nodes_waiting(self) -> int:
        """More than zero when the attempt has failed elsewhere."""
        return int(self._cancelled == self.attempt)

    def all_done(self) -> bool:
        """Called when this host's ranks are done: whether those of all the others are, too."""
        if self._done < self.attempt:
            self._done = self.attempt
            self._wire.send(Done(self.attempt))
        time.sleep(_LOOK_S * (not self._dismissed))
        return self._dismissed

    def leave(self) -> None:
        self._store = None


class GuidedAgent(HostAgent):
    """Elastic's agent, without the meetings of agents among themselves."""

    def __init__(self, meeting: Guided, *rest: Any) -> None:
        self._guide = meeting
        super().__init__(meeting, *rest)

    def _assign_worker_ranks(self, store: Store, group_rank: int, group_world_size: int, spec: Any) -> list[Worker]:
        begin = self._guide.begin
        assert begin is not None, "asked before the first attempt"
        workers = []
        for local_rank in range(spec.local_world_size):
            rank = begin.first_rank + local_rank
            workers.append(Worker(local_rank, rank, rank, begin.world_size, begin.world_size))
        return workers

    def _exit_barrier(self) -> None:
        """The launcher dismisses all hosts together."""

    def _network_env(self, plan: Plan) -> dict[str, str]:
        """The interface on the route to the master, for those who would ask a name service instead."""
        begin = self._guide.begin
        assert begin is not None, "asked before the first attempt"
        return connectivity.interface_env(begin.interface, forced=plan.interface is not None)
