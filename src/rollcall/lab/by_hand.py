"""Nodes that are started one by one, in as many terminals, with the origin's flags.

Node 0 opens a door at its port, or at the next free one; the others look for it there. They show each other
their flags: all agree, or all hear the same sentence. Then the port becomes the store of the world.
"""

import contextlib
import functools
import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any
from urllib.parse import urlparse

from rollcall.errors import RollcallError, UsageError, WorldError, say
from rollcall.functions import raise_first
from rollcall.lab.experiment import Experiment, load
from rollcall.launch.host import names
from rollcall.launch.host.routes import interface_of
from rollcall.ports import EVERYWHERE, find_holder, is_free_port, listen, resolve
from rollcall.world import get_hostname, get_process_id

_GREETING = "rollcall lab 1"
_NEXT_PORTS = 32  # how far node 0 looks for a free port, and the others for node 0
_JOIN_S = 300.0
_GREET_S = 1.0
_LEAVE_S = 60.0
_ORIGINS = {"master_addr": "localhost", "master_port": 29500, "nnodes": 1, "node_rank": 0, "init_method": "env://"}
_MUST_AGREE = ("experiment", "nnodes", "nproc_per_node", "world_size", "backend", "init_method")


@dataclass(frozen=True)
class Node:
    """The origin's flags, all of them set."""

    master_addr: str
    master_port: int
    nnodes: int
    nproc_per_node: int
    node_rank: int
    world_size: int
    backend: str | None
    init_method: str

    @classmethod
    def of(cls, flags: dict[str, Any], ranks: int | None, backend: str | None) -> "Node":
        """What was given, what follows from it, and the origin's values for the rest."""
        chosen = {**_ORIGINS, **{name: value for name, value in flags.items() if value is not None}}
        if ranks is not None and chosen.setdefault("nproc_per_node", ranks) != ranks:
            raise UsageError(f"-n {ranks} and --nproc_per_node {chosen['nproc_per_node']} differ: use one of them")
        nnodes = chosen["nnodes"]
        if nnodes < 1:
            raise UsageError(f"--nnodes {nnodes} leaves no node to run on: use 1 or more")
        if "nproc_per_node" not in chosen:
            chosen["nproc_per_node"] = max(1, chosen.get("world_size", 4 * nnodes) // nnodes)
        chosen.setdefault("world_size", nnodes * chosen["nproc_per_node"])
        return cls(backend=backend, **chosen).checked()

    def checked(self) -> "Node":
        if self.nproc_per_node < 1:
            raise UsageError(f"--nproc_per_node {self.nproc_per_node} starts nothing: use 1 or more")
        if self.nnodes * self.nproc_per_node != self.world_size:
            raise UsageError(
                f"--world_size {self.world_size} is not {self.nnodes} nodes × {self.nproc_per_node} processes:"
                f" use --world_size {self.nnodes * self.nproc_per_node}, or leave it out"
            )
        if not 0 <= self.node_rank < self.nnodes:
            raise UsageError(
                f"--node_rank {self.node_rank} is not among {self.nnodes} nodes: they are 0 to {self.nnodes - 1}"
            )
        if not 0 < self.master_port < 2**16:
            raise UsageError(f"--master_port {self.master_port} does not exist: use a number from 1 to 65535")
        url = urlparse(self.init_method)
        if url.scheme not in ("env", "tcp", "file"):
            raise UsageError(
                f"--init_method {self.init_method} is not known: use env://, tcp://host:port or file:///path"
            )
        if url.scheme == "tcp":
            if not url.hostname or not url.port:
                raise UsageError(f"--init_method {self.init_method} lacks a host or a port: use tcp://host:port")
            return replace(self, master_addr=url.hostname, master_port=url.port)
        return self

    def at(self, port: int) -> "Node":
        """The same, with the port that node 0 could have."""
        method = f"tcp://{self.master_addr}:{port}" if self.init_method.startswith("tcp:") else self.init_method
        return replace(self, master_port=port, init_method=method)

    def env(self, local_rank: int) -> dict[str, str]:
        """What torchrun would tell this rank; the store is served by node 0's own process."""
        told = {
            "RANK": self.node_rank * self.nproc_per_node + local_rank,
            "LOCAL_RANK": local_rank,
            "GROUP_RANK": self.node_rank,
            "WORLD_SIZE": self.world_size,
            "LOCAL_WORLD_SIZE": self.nproc_per_node,
            "GROUP_WORLD_SIZE": self.nnodes,
            "MASTER_ADDR": self.master_addr,
            "MASTER_PORT": self.master_port,
            "TORCHELASTIC_USE_AGENT_STORE": True,
        }
        return {name: str(value) for name, value in told.items()}


def run(experiment: Experiment, node: Node, arm: str | None, extras: dict[str, Any]) -> int:
    """This node's ranks, once."""
    from rollcall.lab import worlds

    if node.world_size < experiment.least_ranks:
        raise UsageError(
            f"{experiment.name} needs {experiment.least_ranks} ranks or more, and the flags give {node.world_size}:"
            f" use a larger --nproc_per_node"
        )
    for name in extras:
        if not experiment.takes(name):
            raise UsageError(f"--{name} is not for {experiment.name}: leave it out")
    if arm is not None:
        experiment.arm(arm)
    with _meet(experiment.name, node) as (agreed, own_address):
        interface = interface_of(own_address) if own_address and node.nnodes > 1 else None
        env = {"GLOO_SOCKET_IFNAME": interface} if interface else {}
        on_rank = functools.partial(_on_rank, experiment.name, agreed, arm, extras)
        answers = worlds.call(on_rank, node.nproc_per_node, env)
        raise_first(answers, None)
        return max(int(answer.value) for answer in answers)


def _on_rank(name: str, node: Node, arm: str | None, extras: dict[str, Any], local_rank: int) -> int:
    """On a rank: say who this is, as the origin's programs do, and do the experiment once."""
    os.environ.update(node.env(local_rank))
    from rollcall.group import init
    from rollcall.lab import show

    experiment = load(name)
    with init(node.backend, init_method=node.init_method) as world:
        world.barrier()  # who is done in no time must not leave while others still connect
        world.logger.info(world.info.model_dump_json(indent=4))
        if experiment.once is not None:
            experiment.once(world, **extras)
            return 0
        if experiment.arms:
            chosen = experiment.arm(arm) if arm else experiment.arms[0]
            world.logger.info(f"{chosen.name}: {json.dumps(experiment.measure(world, chosen.name, 1))}")
            return 0
        from rollcall.lab.perform import gather

        values = gather(world, experiment.measure(world, 1, **extras))
        if values is None:
            return 0
        verdict = experiment.judge(values)
        show.say_sentence(verdict)
        return verdict.exit_code


@contextlib.contextmanager
def _meet(experiment: str, node: Node) -> Iterator[tuple[Node, str]]:
    """The node as all have agreed on it, with our own address; node 0 serves the store until all have left."""
    if node.init_method.startswith("file:"):
        yield node, ""  # the file is the meeting place, and rollcall.init compares the flags
    elif node.node_rank == 0:
        with _host(experiment, node) as agreed:
            yield agreed, resolve(node.master_addr)[1]
    else:
        with _visit(experiment, node) as agreed_and_address:
            yield agreed_and_address


def _card(experiment: str, node: Node) -> dict[str, Any]:
    method = node.init_method.partition(":")[0]
    here = {"host": get_hostname(), "pid": get_process_id()}
    return {**asdict(node), "init_method": method, "experiment": experiment, **here}


# ---- node 0


@contextlib.contextmanager
def _host(experiment: str, node: Node) -> Iterator[Node]:
    from torch.distributed import TCPStore

    names.have_torch_give_up()  # looking up the names of its peers, where nobody may answer
    _, address = resolve(node.master_addr)
    stays_here = node.nnodes == 1 or address.startswith("127.") or address == "::1"
    listener, port = _listen(address if stays_here else EVERYWHERE, node.master_port)
    with contextlib.ExitStack() as guests:
        callers = _receive(listener, _card(experiment, node), node)
        for caller in callers:
            guests.enter_context(caller)
        store = TCPStore(address, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
        for caller in callers:
            _tell(caller, {"port": port})
        yield node.at(port)
        _wait_for_goodbyes(callers)
        del store


def _listen(address: str, wanted: int) -> tuple[socket.socket, int]:
    for port in range(wanted, min(wanted + _NEXT_PORTS, 2**16)):
        if is_free_port(port, address):
            with contextlib.suppress(UsageError):  # somebody was faster
                listener = listen(address, port)
                if port != wanted:
                    holder = find_holder(wanted)
                    by = f" by process {holder.pid} ({holder.name()})" if holder else ""
                    say(f"port {wanted} is in use{by}: took {port}, and told all ranks")
                return listener, port
    raise UsageError(f"no port from {wanted} to {wanted + _NEXT_PORTS - 1} is free: use another --master_port")


def _receive(listener: socket.socket, own: dict[str, Any], node: Node) -> list[socket.socket]:
    """A connection to every other node; whoever has other flags is told so, and so are all."""
    deadline = time.monotonic() + _JOIN_S
    callers: dict[int, socket.socket] = {}
    try:
        while len(callers) < node.nnodes - 1:
            listener.settimeout(max(0.1, deadline - time.monotonic()))
            try:
                caller, _ = listener.accept()
            except TimeoutError:
                absent = sorted(set(range(1, node.nnodes)) - set(callers))
                raise WorldError(
                    f"after {_JOIN_S:.0f} s node {', '.join(map(str, absent))} had not come: start it with the same"
                    f" flags and its own --node_rank"
                ) from None
            card = _greet(caller)
            if card is None:
                caller.close()
                continue
            problem = _differences(own, card) or _is_taken(card, callers)
            if problem:
                _tell(caller, {"error": problem})
                raise UsageError(problem)
            callers[card["node_rank"]] = caller
    except RollcallError as error:
        for caller in callers.values():
            with contextlib.suppress(OSError):
                _tell(caller, {"error": str(error)})
        listener.close()
        raise
    listener.settimeout(None)
    return list(callers.values())


def _greet(caller: socket.socket) -> dict[str, Any] | None:
    """The other's card; None for one who only came by."""
    caller.settimeout(_GREET_S * 5)
    try:
        _tell(caller, {"greeting": _GREETING})
        card = _hear(caller)
    except (OSError, ValueError):
        return None
    return card if card and card.get("greeting") == _GREETING else None


def _differences(own: dict[str, Any], other: dict[str, Any]) -> str:
    for name in _MUST_AGREE:
        if own[name] != other.get(name):
            flag = "experiment" if name == "experiment" else f"--{name}"
            return (
                f"node {other.get('node_rank')} (process {other.get('pid')} on {other.get('host')}) has {flag}"
                f" {other.get(name)}, node 0 (process {own['pid']} on {own['host']}) has {own[name]}: give all nodes"
                f" the same"
            )
    return ""


def _is_taken(card: dict[str, Any], callers: dict[int, socket.socket]) -> str:
    if card["node_rank"] in callers or card["node_rank"] == 0:
        return f"node {card['node_rank']} is there twice: give every node a --node_rank of its own"
    return ""


def _wait_for_goodbyes(callers: list[socket.socket]) -> None:
    """The store is here: until the other nodes have left, too."""
    deadline = time.monotonic() + _LEAVE_S
    for caller in callers:
        caller.settimeout(max(0.1, deadline - time.monotonic()))
        with contextlib.suppress(OSError):
            caller.recv(1)


# ---- the other nodes


@contextlib.contextmanager
def _visit(experiment: str, node: Node) -> Iterator[tuple[Node, str]]:
    door = _find_door(node)
    with door:
        own_address = str(door.getsockname()[0])
        _tell(door, {"greeting": _GREETING, **_card(experiment, node)})
        door.settimeout(_JOIN_S)
        try:
            answer = _hear(door)
        except (OSError, ValueError):
            answer = None
        if answer is None:
            raise WorldError(f"node 0 at {node.master_addr} went away before all nodes had come: see what it says")
        if "error" in answer:
            raise UsageError(answer["error"])
        if answer["port"] != node.master_port:
            say(f"node 0 is at port {answer['port']}, since {node.master_port} is in use there")
        yield node.at(answer["port"]), own_address


def _find_door(node: Node) -> socket.socket:
    """Node 0 may come later than we, and at a port behind the one that was asked for."""
    deadline = time.monotonic() + _JOIN_S
    while time.monotonic() < deadline:
        _, address = resolve(node.master_addr)
        for port in range(node.master_port, min(node.master_port + _NEXT_PORTS, 2**16)):
            door = _try_door(address, port)
            if door is not None:
                return door
        time.sleep(0.2)
    raise WorldError(
        f"node 0 did not answer at {node.master_addr}, ports {node.master_port} to"
        f" {node.master_port + _NEXT_PORTS - 1}, for {_JOIN_S:.0f} s: start it, or correct --master_addr"
    )


def _try_door(address: str, port: int) -> socket.socket | None:
    try:
        door = socket.create_connection((address, port), timeout=_GREET_S)
    except OSError:
        return None
    try:
        greeting = _hear(door)
    except (OSError, ValueError):
        greeting = None
    if greeting is None or greeting.get("greeting") != _GREETING:
        door.close()  # somebody else's
        return None
    return door


def _tell(to: socket.socket, what: dict[str, Any]) -> None:
    to.sendall(json.dumps(what).encode() + b"\n")


def _hear(of: socket.socket) -> dict[str, Any] | None:
    """One line, byte by byte: nothing behind it may be lost."""
    line = b""
    while not line.endswith(b"\n"):
        byte = of.recv(1)
        if not byte or len(line) > 1 << 16:
            return None
        line += byte
    told = json.loads(line)
    return told if isinstance(told, dict) else None
