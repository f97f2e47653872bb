"""Agents that a scheduler starts, many at once: each calls the launcher back, and proves that it knows the secret.

A scheduler's own pipes mix what the agents of all hosts say, so each makes a connection of its own. Both sides
prove that they know the run's secret before the first message (a challenge each, as in multiprocessing).
"""

import contextlib
import io
import os
import secrets
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator, MutableMapping
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

from rollcall.agent.connectivity import own_addresses
from rollcall.coordinator.agents import Line, Member, Start
from rollcall.ports import EVERYWHERE, listen
from rollcall.protocol.hosts import Host
from rollcall.protocol.plan import Plan

ADDRESSES, SECRET, NAME_FROM = "ROLLCALL_CALL", "ROLLCALL_SECRET", "ROLLCALL_NAME_FROM"
_PATIENCE_S = 10
_MOST_NAME_BYTES = 256

# The commands that start agents on these hosts: one for all of them, or one each.
Commands = Callable[[list[Host]], list[list[str]]]


@contextlib.contextmanager
def opened(
    plan: Plan, commands: Commands, name_from: str, note: Callable[[dict[str, str]], None] = lambda env: None
) -> Iterator[Start]:
    """A way to start agents by commands of a scheduler; `name_from` is the variable that tells an agent its host.

    `note` gets what agents need in their environment, where the scheduler does not pass ours on.
    """
    assert plan.reach is not None
    switchboard = _Switchboard()
    settings = {**dict(plan.reach.env), **switchboard.env, NAME_FROM: name_from}
    note(settings)
    env = {**os.environ, **settings}
    started: list[subprocess.Popen[bytes]] = []

    def start(members: list[Member], connected: Callable[[Member, Line], None]) -> None:
        switchboard.expect(members, connected)
        for words in commands([member.host for member in members]):
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env, cwd=plan.cwd, start_new_session=True
            )
            started.append(process)
            threading.Thread(target=switchboard.watch, args=(process, members), name="scheduler", daemon=True).start()

    try:
        yield start
    finally:
        switchboard.close()
        for process in started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_PATIENCE_S / 2)  # agents have gone; the scheduler is about to notice
            process.kill()
            process.wait()


class _Switchboard:
    """Listens for agents, and gives each member its line."""

    def __init__(self) -> None:
        self._secret = secrets.token_hex(32)
        self._listener = listen(EVERYWHERE)
        self._expected: dict[str, tuple[Member, Callable[[Member, Line], None]]] = {}
        self._said: list[str] = []
        threading.Thread(target=self._answer, name="switchboard", daemon=True).start()

    @property
    def env(self) -> dict[str, str]:
        port = self._listener.getsockname()[1]
        return {ADDRESSES: ",".join(f"{address} {port}" for address in own_addresses({})), SECRET: self._secret}

    def expect(self, members: list[Member], connected: Callable[[Member, Line], None]) -> None:
        self._expected.update({_short(member.name): (member, connected) for member in members})

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def watch(self, process: "subprocess.Popen[bytes]", members: list[Member]) -> None:
        """When the scheduler's command ends, those that have not called will not call any more."""
        assert process.stderr is not None
        said = [line.decode(errors="replace").rstrip() for line in process.stderr]
        process.wait()
        for member in members:
            if (expected := self._expected.pop(_short(member.name), None)) is not None:
                expected[1](member, Line(io.BytesIO(), io.BytesIO(), process, errors=tuple(said)))

    def _answer(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                caller, _ = self._listener.accept()
                threading.Thread(target=self._admit, args=(caller,), name="caller", daemon=True).start()

    def _admit(self, caller: socket.socket) -> None:
        with caller, contextlib.suppress(OSError, EOFError, AuthenticationError):
            _set_timeout(caller, _PATIENCE_S)
            connection = Connection(os.dup(caller.fileno()))
            deliver_challenge(connection, self._secret.encode())
            answer_challenge(connection, self._secret.encode())
            name = connection.recv_bytes(_MOST_NAME_BYTES).decode()
            _set_timeout(caller, 0)
            if (expected := self._expected.pop(_short(name), None)) is not None:
                member, connected = expected
                connected(member, Line(caller.makefile("rb"), caller.makefile("wb"), hang_up=_hanger(caller)))
            connection.close()


def _hanger(caller: socket.socket) -> Callable[[], None]:
    own = caller.dup()

    def hang_up() -> None:
        with contextlib.suppress(OSError):
            own.shutdown(socket.SHUT_RDWR)

    return hang_up


def call(environ: MutableMapping[str, str]) -> int:
    """The agent's side: a connection to the launcher. OSError where none answers."""
    secret = environ.pop(SECRET, "")
    name = environ.get(environ.pop(NAME_FROM, ""), "") or socket.gethostname()
    errors = []
    for place in environ.pop(ADDRESSES).split(","):
        address, _, port = place.partition(" ")
        try:
            caller = socket.create_connection((address, int(port)), timeout=_PATIENCE_S)
            caller.settimeout(None)
            _set_timeout(caller, _PATIENCE_S)
            connection = Connection(caller.detach())
            answer_challenge(connection, secret.encode())
            deliver_challenge(connection, secret.encode())
        except (OSError, EOFError, AuthenticationError) as error:
            errors.append(f"{address}: {error}")
            continue
        connection.send_bytes(name.encode())
        fd = os.dup(connection.fileno())
        connection.close()
        with socket.socket(fileno=os.dup(fd)) as kept:
            _set_timeout(kept, 0)
        return fd
    raise OSError(f"cannot reach the launcher ({'; '.join(errors)})")


def _set_timeout(connection: socket.socket, seconds: int) -> None:
    """By the kernel: a timeout of Python's would make the file non-blocking for those who read it later."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", seconds, 0))


def _short(name: str) -> str:
    """A host's name as both sides may know it."""
    return name if name.replace(".", "").isdigit() else name.partition(".")[0]
