"""Nodes that are started one by one find each other and compare their flags.

Node 0 listens at its port, or at the next free one; the others try these ports until they find it. Each sends its
flags, as JSON in one line. If all agree, the port becomes the world's store; if not, every node prints the same
sentence and ends.
"""

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rollcall.compat import torch_dns
from rollcall.errors import RollcallError, UsageError, WorldError, say
from rollcall.lab.runner.node import Node
from rollcall.ports import EVERYWHERE, find_holder, is_free_port, listen, resolve
from rollcall.world import get_hostname, get_process_id

_GREETING = "rollcall lab 1"
_PORTS = 32  # how many ports node 0 tries, and the others after it
_JOIN_S = 300.0
_CONNECT_S = 1.0
_FLAGS_S = 5.0
_LEAVE_S = 60.0
_OPTIONS = ("case", "largest", "run_with_no_barrier")
_MUST_AGREE = ("experiment", "nnodes", "nproc_per_node", "world_size", "backend", "init_method", *_OPTIONS)

_Message = dict[str, Any]


class _Peer:
    """A connection to another node: one JSON object per line."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self.own_address = str(connection.getsockname()[0])
        self._lines = connection.makefile("rw", encoding="utf-8")

    def send(self, message: _Message) -> None:
        with contextlib.suppress(OSError):  # a node that is gone is noticed when its answer is missing
            print(json.dumps(message), file=self._lines, flush=True)

    def receive(self, timeout_s: float) -> _Message | None:
        """The next message; None if the connection is closed, silent, or not one of ours."""
        self._socket.settimeout(timeout_s)
        try:
            message = json.loads(self._lines.readline(1 << 16))
        except (OSError, ValueError):
            return None
        return message if isinstance(message, dict) else None

    def close(self) -> None:
        with contextlib.suppress(OSError):  # an unsent message to a node that is gone
            self._lines.close()
        self._socket.close()


@contextlib.contextmanager
def agree(experiment: str, node: Node, options: dict[str, Any]) -> Iterator[tuple[Node, str]]:
    """The node with the port that all use, and our own address. Node 0 serves the store until all have left."""
    if node.init_method.startswith("file:"):
        yield node, ""  # ranks find each other in the file, and rollcall.init compares their flags
        return
    flags = {
        **asdict(node),
        "init_method": node.init_method.partition(":")[0],
        "experiment": experiment,
        **{name: options.get(name) for name in _OPTIONS},
        "host": get_hostname(),
        "pid": get_process_id(),
    }
    with _lead(flags, node) if node.node_rank == 0 else _follow(flags, node) as agreed:
        yield agreed


# ---- node 0


@contextlib.contextmanager
def _lead(flags: _Message, node: Node) -> Iterator[tuple[Node, str]]:
    from torch.distributed import TCPStore

    _, address = resolve(node.master_addr)
    is_local = node.nnodes == 1 or address.startswith("127.") or address == "::1"
    listener, port = _listen(address if is_local else EVERYWHERE, node.master_port)
    with contextlib.ExitStack() as connections:
        peers = _accept_all(listener, flags, node, connections)
        torch_dns.have_torch_give_up()  # on looking up the names of its peers, which may take long
        store = TCPStore(address, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
        for peer in peers:
            peer.send({"port": port})
        yield node.at(port), address
        deadline = time.monotonic() + _LEAVE_S
        for peer in peers:
            peer.receive(max(0.1, deadline - time.monotonic()))  # returns when the node closes its connection
        del store


def _listen(address: str, wanted: int) -> tuple[socket.socket, int]:
    for port in range(wanted, min(wanted + _PORTS, 2**16)):
        if is_free_port(port, address):
            with contextlib.suppress(UsageError):  # another process was faster
                listener = listen(address, port)
                if port != wanted:
                    holder = find_holder(wanted)
                    by = f" by process {holder.pid} ({holder.name()})" if holder else ""
                    say(f"port {wanted} is in use{by}: all nodes use {port} instead")
                return listener, port
    raise UsageError(f"no port from {wanted} to {wanted + _PORTS - 1} is free: use another --master_port")


def _accept_all(listener: socket.socket, own: _Message, node: Node, connections: contextlib.ExitStack) -> list[_Peer]:
    """A connection to every other node. If one has other flags, all are told, and none starts."""
    deadline = time.monotonic() + _JOIN_S
    peers: dict[int, _Peer] = {}
    try:
        while len(peers) < node.nnodes - 1:
            peer = _accept(listener, deadline, node, peers)
            connections.callback(peer.close)
            peer.send({"greeting": _GREETING})
            flags = peer.receive(_FLAGS_S)
            if flags is None or flags.get("greeting") != _GREETING:
                continue  # another program
            if problem := _difference(own, flags) or _duplicate(flags, peers):
                peer.send({"error": problem})
                raise UsageError(problem)
            peers[flags["node_rank"]] = peer
    except RollcallError as error:
        for peer in peers.values():
            peer.send({"error": str(error)})
        listener.close()
        raise
    listener.settimeout(None)
    return list(peers.values())


def _accept(listener: socket.socket, deadline: float, node: Node, peers: dict[int, _Peer]) -> _Peer:
    listener.settimeout(max(0.1, deadline - time.monotonic()))
    try:
        return _Peer(listener.accept()[0])
    except TimeoutError:
        missing = ", ".join(str(rank) for rank in range(1, node.nnodes) if rank not in peers)
        raise WorldError(
            f"after {_JOIN_S:.0f} s node {missing} is missing: start it with the same flags and its own --node_rank"
        ) from None


def _difference(own: _Message, other: _Message) -> str:
    for name in _MUST_AGREE:
        ours, theirs = own[name], other.get(name)
        if ours != theirs:
            flag = "experiment" if name == "experiment" else f"--{name}"
            has = f"no {flag}" if theirs is None else flag if theirs is True else f"{flag} {theirs}"
            against = "not" if ours is None else "it" if ours is True else ours
            return (
                f"node {other.get('node_rank')} (process {other.get('pid')} on {other.get('host')}) has {has},"
                f" node 0 (process {own['pid']} on {own['host']}) has {against}: give all nodes the same"
            )
    return ""


def _duplicate(flags: _Message, peers: dict[int, _Peer]) -> str:
    rank = flags["node_rank"]
    return f"node {rank} was started twice: give every node a --node_rank of its own" if rank in (0, *peers) else ""


# ---- the other nodes


@contextlib.contextmanager
def _follow(flags: _Message, node: Node) -> Iterator[tuple[Node, str]]:
    with contextlib.closing(_find_node_0(node)) as peer:
        peer.send({"greeting": _GREETING, **flags})
        answer = peer.receive(_JOIN_S)
        if answer is None:
            raise WorldError(f"node 0 at {node.master_addr} ended before all nodes had joined: see its messages")
        if "error" in answer:
            raise UsageError(answer["error"])
        if answer["port"] != node.master_port:
            say(f"node 0 uses port {answer['port']}, since {node.master_port} is in use there")
        yield node.at(answer["port"]), peer.own_address


def _find_node_0(node: Node) -> _Peer:
    """Node 0 may be started later than this one, and may listen at one of the next ports."""
    deadline = time.monotonic() + _JOIN_S
    while time.monotonic() < deadline:
        _, address = resolve(node.master_addr)
        for port in range(node.master_port, min(node.master_port + _PORTS, 2**16)):
            if peer := _try_port(address, port):
                return peer
        time.sleep(0.2)
    raise WorldError(
        f"node 0 did not answer at {node.master_addr}, ports {node.master_port} to {node.master_port + _PORTS - 1},"
        f" for {_JOIN_S:.0f} s: start it, or correct --master_addr"
    )


def _try_port(address: str, port: int) -> _Peer | None:
    try:
        peer = _Peer(socket.create_connection((address, port), timeout=_CONNECT_S))
    except OSError:
        return None
    message = peer.receive(_CONNECT_S)
    if message is None or message.get("greeting") != _GREETING:
        peer.close()  # another program's port
        return None
    return peer
