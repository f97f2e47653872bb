"""Where nodes that are started one by one meet.

Node 0 opens a door at its port, or at the next free one; the others look for it there. They show each other
their flags: all agree, or all hear the same sentence. Then the port becomes the store of the world.
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
_NEXT_PORTS = 32  # how far node 0 looks for a free port, and the others for node 0
_JOIN_S = 300.0
_GREET_S = 1.0
_LEAVE_S = 60.0
_OPTIONS = ("arm", "largest", "run_with_no_barrier")  # what else the user may have chosen
_MUST_AGREE = ("experiment", "nnodes", "nproc_per_node", "world_size", "backend", "init_method", *_OPTIONS)


@contextlib.contextmanager
def meet(experiment: str, node: Node, options: dict[str, Any] | None = None) -> Iterator[tuple[Node, str]]:
    """The node as all have agreed on it, with our own address; node 0 serves the store until all have left."""
    card = _card(experiment, node, options or {})
    if node.init_method.startswith("file:"):
        yield node, ""  # the file is the meeting place, and rollcall.init compares the flags
    elif node.node_rank == 0:
        with _host(card, node) as agreed:
            yield agreed, resolve(node.master_addr)[1]
    else:
        with _visit(card, node) as agreed_and_address:
            yield agreed_and_address


def _card(experiment: str, node: Node, options: dict[str, Any]) -> dict[str, Any]:
    method = node.init_method.partition(":")[0]
    here = {"host": get_hostname(), "pid": get_process_id()}
    chosen = {name: options.get(name) for name in _OPTIONS}
    return {**asdict(node), "init_method": method, "experiment": experiment, **chosen, **here}


# ---- node 0


@contextlib.contextmanager
def _host(card: dict[str, Any], node: Node) -> Iterator[Node]:
    from torch.distributed import TCPStore

    _, address = resolve(node.master_addr)
    stays_here = node.nnodes == 1 or address.startswith("127.") or address == "::1"
    listener, port = _listen(address if stays_here else EVERYWHERE, node.master_port)
    with contextlib.ExitStack() as guests:
        callers = _receive(listener, card, node)
        for caller in callers:
            guests.enter_context(caller)
        torch_dns.have_torch_give_up()  # looking up the names of its peers, where nobody may answer
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
                with caller:
                    _tell(caller, {"error": problem})
                raise UsageError(problem)
            callers[card["node_rank"]] = caller
    except RollcallError as error:
        for caller in callers.values():
            with caller, contextlib.suppress(OSError):
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
            theirs, ours = other.get(name), own[name]
            told = f"no {flag}" if theirs is None else flag if theirs is True else f"{flag} {theirs}"
            against = "not" if ours is None else "it" if ours is True else ours
            return (
                f"node {other.get('node_rank')} (process {other.get('pid')} on {other.get('host')}) has {told},"
                f" node 0 (process {own['pid']} on {own['host']}) has {against}: give all nodes the same"
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
def _visit(card: dict[str, Any], node: Node) -> Iterator[tuple[Node, str]]:
    door = _find_door(node)
    with door:
        own_address = str(door.getsockname()[0])
        _tell(door, {"greeting": _GREETING, **card})
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
