"""Agents agree through a store: which hosts there are, in which order, and which store their ranks use.

A RendezvousHandler for torch elastic. Ranks are numbered in the user's order of hosts. Every attempt has a store of its
own: in a shared store, restarted ranks would find the addresses of dead ranks. Hosts that do not answer are named.
"""

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

from torch.distributed import PrefixStore, Store, TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
)

from rollcall.errors import LostHostError, UsageError, WorldError
from rollcall.ports import listen
from rollcall.protocol.plan import LOOPBACK

_POLL_S = 0.05
_LEAVE_S = 5.0
_ATTEMPT = "rollcall/attempt"  # the number of the newest one


class Handler(RendezvousHandler):
    """Methods that elastic requires of every handler, and that no handler of ours needs."""

    _run_id = ""

    @property
    def use_agent_store(self) -> bool:
        return True

    def get_backend(self) -> str:
        return "rollcall"

    def get_run_id(self) -> str:
        return self._run_id

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def shutdown(self) -> bool:
        return True


class StoreRendezvous(Handler):
    """Agreement of `nnodes` agents through a store at `addr:port`, which the agent of node 0 serves."""

    def __init__(
        self,
        *,
        nnodes: int,
        node_rank: int | None,
        slots: int,
        addr: str | None,
        port: int,
        run_id: str,
        timeout_s: float,
        first_attempt: int = 0,
        rejoins: bool = False,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._nnodes, self._slots, self._run_id, self._timeout_s = nnodes, slots, run_id, timeout_s
        self._addr = addr or LOOPBACK
        self._tell = tell
        self._first_attempt, self._rejoins = first_attempt, rejoins
        self.attempt = first_attempt - 1
        self._worker_store: Store | None = None
        self._node_rank = 0 if nnodes == 1 else node_rank
        self._port, self._store = self._open(port)

    def next_rendezvous(self) -> RendezvousInfo:
        try:
            self._check_not_failed()
            self.attempt += 1
            if self._node_rank == 0:
                self._store.set(_ATTEMPT, str(self.attempt))
            elif self._rejoins:
                self._take_old_place()
            self._announce_host()
            self._wait_for_all()
            master = self._store_of_the_ranks()
        except RuntimeError as error:  # of the store
            raise self._lost_master() from error
        elastic = PrefixStore(f"rollcall/elastic/{self.attempt}", self._store)
        return RendezvousInfo(elastic, self.node_rank, self._nnodes, master)

    @property
    def node_rank(self) -> int:
        """This host's number: given, or taken on arrival."""
        assert self._node_rank is not None, "asked before the first rendezvous"
        return self._node_rank

    def announce_failure(self, sentence: str, final: bool) -> None:
        """Tell the other agents that this attempt is over, and whether another one follows."""
        if self._nnodes > 1:
            with contextlib.suppress(RuntimeError):  # the master may be gone already
                key = "failed" if final else f"over/{self.attempt}"
                self._store.set(f"rollcall/{key}", sentence)

    def num_nodes_waiting(self) -> int:
        """More than zero when another agent has given this attempt up."""
        if self._nnodes == 1:
            return 0
        try:
            return int(self._store.check([f"rollcall/over/{self.attempt}"]) or self._store.check(["rollcall/failed"]))
        except RuntimeError as error:
            raise self._lost_master() from error

    def _lost_master(self) -> LostHostError:
        return LostHostError(
            f"the agent of node 0 at {self._addr}:{self._port} is gone, so this host's ranks were ended: look there"
        )

    def failure_of_attempt(self) -> str:
        """Why another agent has given this attempt up; empty if none has."""
        for key in (f"rollcall/over/{self.attempt}", "rollcall/failed"):
            with contextlib.suppress(RuntimeError):  # the master is gone
                if self._store.check([key]):
                    return self._store.get(key).decode()
        return ""

    def publish(self, topic: str, text: str) -> None:
        """Tell the other agents something about this attempt. It replaces an earlier text on the same topic."""
        with contextlib.suppress(RuntimeError):  # the master is gone, which num_nodes_waiting notices
            self._store.set(self._topic_key(topic, self.node_rank), text)

    def published(self, topic: str) -> list[str]:
        """The text of each of the other agents; empty if an agent has published none."""
        others = [node for node in range(self._nnodes) if node != self.node_rank]
        return [self._text_of(self._topic_key(topic, node)) for node in others]

    def _text_of(self, key: str) -> str:
        with contextlib.suppress(RuntimeError):
            return self._store.get(key).decode() if self._store.check([key]) else ""
        return ""

    def slots_of_all(self) -> list[int]:
        """How many ranks each host has, by node rank."""
        return [int(json.loads(self._store.get(self._key(node)))["slots"]) for node in range(self._nnodes)]

    def all_done(self) -> bool:
        """Called when this host's ranks are done: whether those of all the others are, too."""
        if self._nnodes == 1:
            return True
        self._store.set(f"rollcall/done/{self.attempt}/{self._node_rank}", "1")
        return bool(self._store.check([f"rollcall/done/{self.attempt}/{n}" for n in range(self._nnodes)]))

    def leave(self) -> None:
        """Node 0 holds the store: it goes last, or the others would not learn how the run ended."""
        if self._nnodes == 1:
            return
        with contextlib.suppress(RuntimeError):
            self._store.set(f"rollcall/left/{self._node_rank}", "1")
            deadline = time.monotonic() + _LEAVE_S
            while self._node_rank == 0 and time.monotonic() < deadline:
                if self._store.check([f"rollcall/left/{n}" for n in range(self._nnodes)]):
                    return
                time.sleep(_POLL_S)

    def _open(self, port: int) -> tuple[int, Store]:
        """The agents' store: held by node 0, reached by the others."""
        if self._node_rank == 0 or (self._node_rank is None and _is_ours(self._addr)):
            try:
                listener = self._listen(port)
            except UsageError:
                if self._node_rank == 0:
                    raise
            else:
                self._node_rank = 0
                return listener.getsockname()[1], self._serve(listener)
        return port, self._connect(port)

    def _listen(self, port: int) -> socket.socket:
        """Listens on our own address if it is one of this host's; else on all: a name may mean another one here."""
        return listen(self._addr if _is_ours(self._addr) else "0.0.0.0", port)

    def _serve(self, listener: socket.socket) -> TCPStore:
        # An IPv4 listener: torch looks up names for its peers, and ::ffff:127.0.0.1 has none.
        bound = listener.getsockname()[1]
        return serve_store(self._addr, bound, listener.detach(), self._timeout_s)

    def _connect(self, port: int) -> TCPStore:
        """Wait for node 0 to appear: it may be started minutes later, by hand."""
        for is_time_to_tell in self._until_timeout():
            with contextlib.suppress(OSError), socket.create_connection((self._addr, port), timeout=2):
                return TCPStore(
                    self._addr,
                    port,
                    is_master=False,
                    wait_for_workers=False,
                    timeout=timedelta(seconds=self._timeout_s),
                )
            if is_time_to_tell:
                self._tell(f"waiting for node 0 at {self._addr}:{port}, which does not answer yet")
        raise WorldError(
            f"node 0 at {self._addr}:{port} did not answer within {self._timeout_s:g} s: start it there with"
            f" --node-rank 0, or check --master-addr, --master-port and the firewall"
        )

    def _take_old_place(self) -> None:
        """This host was started again. If the others have begun an attempt without it, or with its earlier process,
        it joins the next attempt. They may not have noticed that it was lost."""
        current = int(self._store.get(_ATTEMPT)) if self._store.check([_ATTEMPT]) else 0
        self.attempt = max(self.attempt, current)
        if self._store.check([self._key(self.node_rank)]):
            self.announce_failure(f"node {self.node_rank} was started again", final=False)
            self.attempt += 1

    def _announce_host(self) -> None:
        """Announce this host under its number."""
        if self._node_rank is None:
            self._node_rank = self._store.add(f"rollcall/arrivals/{self._run_id}", 1)
        me = json.dumps({"host": socket.gethostname(), "slots": self._slots, "pid": os.getpid()})
        first = self._store.compare_set(self._key(self._node_rank), "", me).decode()
        if first != me:
            raise UsageError(
                f"two agents say they are node {self._node_rank}: {first} and {me}; give each its own --node-rank"
            )

    def _wait_for_all(self) -> None:
        for is_time_to_tell in self._until_timeout():
            missing = [n for n in range(self._nnodes) if not self._store.check([self._key(n)])]
            if not missing:
                return
            if is_time_to_tell:
                self._tell(f"waiting for {self._names(missing)}")
            self._check_not_failed()
        raise WorldError(
            f"after {self._timeout_s:g} s {self._names(missing)} had not come: start each with the same"
            f" --master-addr and --master-port, or lower --nnodes"
        )

    def _names(self, nodes: list[int]) -> str:
        numbers = ", ".join(map(str, nodes))
        return f"{len(nodes)} of {self._nnodes} hosts (node {numbers})"

    def _store_of_the_ranks(self) -> RendezvousStoreInfo:
        """The store of this attempt's ranks: the agents' own at first, a new one after each restart."""
        if self.attempt == self._first_attempt:
            return RendezvousStoreInfo(self._addr, self._port)
        key = f"rollcall/store/{self.attempt}"
        if self._node_rank == 0:
            listener = self._listen(0)
            port = listener.getsockname()[1]
            self._worker_store = self._serve(listener)
            self._store.set(key, str(port))
        return RendezvousStoreInfo(self._addr, int(self._store.get(key)))

    def _check_not_failed(self) -> None:
        if self._nnodes > 1 and self._store.check(["rollcall/failed"]):
            raise WorldError(self._store.get("rollcall/failed").decode())

    def _topic_key(self, topic: str, node_rank: int) -> str:
        return f"rollcall/{topic}/{self.attempt}/{node_rank}"

    def _key(self, node_rank: int) -> str:
        return f"rollcall/host/{self.attempt}/{node_rank}"

    def _until_timeout(self) -> Iterator[bool]:
        """Yields until the timeout; True now and then, when it is time to print which hosts are missing."""
        start = time.monotonic()
        say_at = start + 5
        while (now := time.monotonic()) < start + self._timeout_s:
            yield now >= say_at
            if now >= say_at:
                say_at = now + 30
            time.sleep(_POLL_S)


def serve_store(addr: str, port: int, listen_fd: int, timeout_s: float = 300) -> TCPStore:
    """A store on a listening socket."""
    return TCPStore(
        addr,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=timeout_s),
        master_listen_fd=listen_fd,
    )


def _is_ours(addr: str) -> bool:
    """Whether an address is one of this host's: only then can we listen on it."""
    try:
        with socket.socket() as probe:
            probe.bind((addr, 0))
    except OSError:
        return False
    return True
