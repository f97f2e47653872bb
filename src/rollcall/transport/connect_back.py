"""Agents that a scheduler starts, many at once: each connects back to the launcher, and authenticates.

A scheduler's own pipes mix the output of the agents of all hosts, so each agent makes its own connection. Before the
first message, both sides prove that they know the run's secret (a challenge each, as in multiprocessing).
"""

import contextlib
import io
import os
import secrets
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection as Challenged
from multiprocessing.connection import answer_challenge, deliver_challenge

from rollcall.addresses import own_addresses
from rollcall.ports import EVERYWHERE, listen
from rollcall.protocol.connect_back import ADDRESSES, NAME_FROM, SECRET, TIMEOUT_S, set_timeout
from rollcall.protocol.hosts import Host
from rollcall.protocol.plan import Plan
from rollcall.transport.connection import Connection, StartAgents

_MOST_NAME_BYTES = 256

# The commands that start agents on these hosts: one for all of them, or one each.
Commands = Callable[[list[Host]], list[list[str]]]


@contextlib.contextmanager
def opened(
    plan: Plan, commands: Commands, name_from: str, note: Callable[[dict[str, str]], None] = lambda env: None
) -> Iterator[StartAgents]:
    """Starts agents by commands of a scheduler; `name_from` is the variable that tells an agent its host.

    `note` gets what agents need in their environment, where the scheduler does not pass ours on.
    """
    listener = _Listener()
    settings = {**dict(plan.transport.env), **listener.env, NAME_FROM: name_from}
    note(settings)
    env = {**os.environ, **settings}
    started: list[subprocess.Popen[bytes]] = []

    def start(hosts: list[Host], connected: Callable[[Host, Connection], None]) -> None:
        listener.expect(hosts, connected)
        for command in commands(hosts):
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env, cwd=plan.cwd, start_new_session=True
            )
            started.append(process)
            threading.Thread(target=listener.watch, args=(process, hosts), name="scheduler", daemon=True).start()

    try:
        yield start
    finally:
        listener.close()
        for process in started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(TIMEOUT_S / 2)  # agents have gone; the scheduler is about to notice
            process.kill()
            process.wait()


class _Listener:
    """Waits for agents to connect, and gives each host its connection."""

    def __init__(self) -> None:
        self._secret = secrets.token_hex(32)
        self._listener = listen(EVERYWHERE)
        self._expected: dict[str, tuple[Host, Callable[[Host, Connection], None]]] = {}
        threading.Thread(target=self._answer, name="listener", daemon=True).start()

    @property
    def env(self) -> dict[str, str]:
        port = self._listener.getsockname()[1]
        return {ADDRESSES: ",".join(f"{address} {port}" for address in own_addresses({})), SECRET: self._secret}

    def expect(self, hosts: list[Host], connected: Callable[[Host, Connection], None]) -> None:
        self._expected.update({_short(host.name): (host, connected) for host in hosts})

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def watch(self, process: "subprocess.Popen[bytes]", hosts: list[Host]) -> None:
        """When the scheduler's command ends, report the agents that have not connected: they no longer will."""
        assert process.stderr is not None
        said = [line.decode(errors="replace").rstrip() for line in process.stderr]
        process.wait()
        for host in hosts:
            if (expected := self._expected.pop(_short(host.name), None)) is not None:
                expected[1](host, Connection(io.BytesIO(), io.BytesIO(), process, errors=tuple(said)))

    def _answer(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                caller, _ = self._listener.accept()
                threading.Thread(target=self._admit, args=(caller,), name="caller", daemon=True).start()

    def _admit(self, caller: socket.socket) -> None:
        with caller, contextlib.suppress(OSError, EOFError, AuthenticationError):
            set_timeout(caller, TIMEOUT_S)
            connection = Challenged(os.dup(caller.fileno()))
            deliver_challenge(connection, self._secret.encode())
            answer_challenge(connection, self._secret.encode())
            name = connection.recv_bytes(_MOST_NAME_BYTES).decode()
            set_timeout(caller, 0)
            if (expected := self._expected.pop(_short(name), None)) is not None:
                host, connected = expected
                connected(host, Connection(caller.makefile("rb"), caller.makefile("wb"), hang_up=_hang_up(caller)))
            connection.close()


def _hang_up(caller: socket.socket) -> Callable[[], None]:
    own = caller.dup()

    def hang_up() -> None:
        with contextlib.suppress(OSError):
            own.shutdown(socket.SHUT_RDWR)

    return hang_up


def _short(name: str) -> str:
    """A host's name as both sides may know it."""
    return name if name.replace(".", "").isdigit() else name.partition(".")[0]
