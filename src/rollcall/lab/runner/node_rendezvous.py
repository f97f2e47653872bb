"""Nodes that are started one by one find each other and compare their flags, in the store that their ranks will use.

Node 0 serves the store at its port, or at the next free one; the others try these ports until they find it. If the
flags of two nodes differ, every node prints the same sentence, and none starts its ranks.
"""

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from typing import Any

from torch.distributed import PrefixStore, Store, TCPStore

from rollcall.agent.rendezvous.store import serve_store
from rollcall.errors import UsageError, WorldError, say
from rollcall.initialization.waiting import poll, run_with_timeout
from rollcall.lab.runner.node import Node
from rollcall.ports import EVERYWHERE, find_holder, is_free_port, listen, resolve
from rollcall.world import get_hostname, get_process_id

_PORTS = 32  # how many ports node 0 tries, and the others after it
_JOIN_S = 300.0
_CONNECT_S = 1.0
_LEAVE_S = 10.0
_OPTIONS = ("case", "largest", "run_with_no_barrier")
_MUST_AGREE = ("experiment", "nnodes", "nproc_per_node", "world_size", "backend", "init_method", *_OPTIONS)

_Flags = dict[str, Any]


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
    store, port, own_address = _serve(node) if node.node_rank == 0 else _find(node)
    try:
        _compare(store, node, flags)
        yield node.at(port), own_address
    finally:
        _leave(store, node)


def _serve(node: Node) -> tuple[Store, int, str]:
    _, address = resolve(node.master_addr)
    is_local = node.nnodes == 1 or address.startswith("127.") or address == "::1"
    for port in _ports(node):
        if is_free_port(port, address if is_local else EVERYWHERE):
            with contextlib.suppress(UsageError):  # another process was faster
                listener = listen(address if is_local else EVERYWHERE, port)
                if port != node.master_port:
                    holder = find_holder(node.master_port)
                    by = f" by process {holder.pid} ({holder.name()})" if holder else ""
                    say(f"port {node.master_port} is in use{by}: all nodes use {port} instead")
                return _of_lab(serve_store(address, port, listener.detach())), port, address
    raise UsageError(f"no port from {node.master_port} to {_ports(node)[-1]} is free: use another --master_port")


def _find(node: Node) -> tuple[Store, int, str]:
    """The store of node 0, which may be started later than this one. Other programs may have some of its ports."""

    def try_ports() -> tuple[Store, int, str] | None:
        _, address = resolve(node.master_addr)
        for port in _ports(node):
            # Torch waits without a limit for a program that accepts the connection and sends nothing.
            with contextlib.suppress(OSError, RuntimeError, TimeoutError):
                with socket.create_connection((address, port), timeout=_CONNECT_S) as connection:
                    own_address = str(connection.getsockname()[0])
                store = run_with_timeout(partial(_connect, address, port), _CONNECT_S)
                if store.check([_key(0)]):
                    return store, port, own_address
        return None

    found = poll(try_ports, time.monotonic() + _JOIN_S)
    if found is None:
        raise WorldError(
            f"node 0 did not answer at {node.master_addr}, ports {node.master_port} to {_ports(node)[-1]},"
            f" for {_JOIN_S:.0f} s: start it, or correct --master_addr"
        )
    if found[1] != node.master_port:
        say(f"node 0 uses port {found[1]}, since {node.master_port} is in use there")
    return found


def _connect(address: str, port: int) -> Store:
    return _of_lab(TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=_JOIN_S)))


def _of_lab(store: Store) -> Store:
    return PrefixStore("rollcall/lab", store)


def _ports(node: Node) -> range:
    return range(node.master_port, min(node.master_port + _PORTS, 2**16))


def _key(node_rank: int) -> str:
    return f"flags/{node_rank}"


def _compare(store: Store, node: Node, flags: _Flags) -> None:
    try:
        _wait_for_all(store, node, flags)
    except RuntimeError as error:  # of the store
        raise WorldError(f"node 0 at {node.master_addr} ended before all nodes had joined: see its messages") from error


def _wait_for_all(store: Store, node: Node, flags: _Flags) -> None:
    """Wait for the flags of all nodes. The first node that sees a problem writes it down, and all raise it."""
    rank = node.node_rank
    store.add("came", 1)
    first = flags if rank == 0 else json.loads(store.get(_key(0)))
    is_second = store.add(f"started/{rank}", 1) > 1
    twice = f"node {rank} was started twice: give every node a --node_rank of its own"
    if problem := twice if is_second else _difference(first, flags):
        store.compare_set("problem", "", problem)
    store.set(_key(rank), json.dumps(flags))  # last: who sees the flags of all nodes sees their problems, too
    keys = [_key(each) for each in range(node.nnodes)]
    all_came = poll(lambda: store.check(["problem"]) or store.check(keys) or None, time.monotonic() + _JOIN_S)
    if store.check(["problem"]):
        raise UsageError(store.get("problem").decode())
    if all_came is None:
        missing = ", ".join(key.rpartition("/")[2] for key in keys if not store.check([key]))
        raise WorldError(
            f"after {_JOIN_S:.0f} s node {missing} is missing: start it with the same flags and its own --node_rank"
        )


def _difference(first: _Flags, other: _Flags) -> str:
    for name in _MUST_AGREE:
        ours, theirs = first[name], other[name]
        if ours != theirs:
            flag = "experiment" if name == "experiment" else f"--{name}"
            has = f"no {flag}" if theirs is None else flag if theirs is True else f"{flag} {theirs}"
            against = "not" if ours is None else "it" if ours is True else ours
            return (
                f"node {other['node_rank']} (process {other['pid']} on {other['host']}) has {has},"
                f" node 0 (process {first['pid']} on {first['host']}) has {against}: give all nodes the same"
            )
    return ""


def _leave(store: Store, node: Node) -> None:
    """The store ends with the process of node 0, so that goes last."""
    with contextlib.suppress(RuntimeError):  # node 0 is gone
        store.add("left", 1)
        if node.node_rank == 0:
            poll(lambda: store.add("left", 0) >= store.add("came", 0) or None, time.monotonic() + _LEAVE_S)
