"""All agents of a run, from the launcher's side: starts them, reads their messages, notices a lost one.

The messages of all agents go into one queue, so that one thread decides.
"""

import collections
import contextlib
import dataclasses
import os
import queue
import selectors
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from rollcall.coordinator.clock_offsets import ClockOffset
from rollcall.linux import open_files
from rollcall.protocol.channel import AGENT_SPEAKS, GREETING, Channel
from rollcall.protocol.hosts import Host
from rollcall.protocol.messages import AgentEnded, HostInfo, Message, Pong, Ready, Started
from rollcall.transport.connection import Connection, StartAgents

_AT_ONCE = 64  # this many may be starting at the same time
_FEW_LINES = 20
_STACK_BYTES = 512 << 10
_REAP_S = 5.0
_LAST_ERRORS_S = 0.5
_OWN_FILES, _FILES_PER_HOST = 256, 8  # a host has three pipes: the usual limit of 1024 would end at 300 hosts


class Stage(Message):
    """How far an agent has come with its start, in words. Not sent: read from what it prints first."""

    text: str


class Disconnected(Message):
    """A connection has ended. `exit_code` is that of the process at our end, if it had one that is known. Not sent."""

    exit_code: int | None
    is_of_agent: bool = False  # that process is the agent itself


@dataclass(eq=False)
class Agent:
    """One host, and what the launcher knows of its agent."""

    node: int
    host: Host
    connection: Connection | None = None
    channel: Channel | None = None
    stage: str = "not yet reached"
    speaks: bool = False  # it has answered, so there is somebody to send messages to
    info: HostInfo | None = None
    is_prepared: bool = False  # it was told what to run
    is_ready: bool = False  # its ranks can be started
    exit_code: int | None = None  # how it ended, if anybody could tell
    shared: bool = True  # it sees the launcher's folder of the run
    first_rank: int = 0
    heard_s: float = 0.0
    clock: ClockOffset = field(default_factory=ClockOffset)
    lost: str = ""  # why it no longer takes part, to follow its name
    is_cut_off: bool = False  # it may still be there, but nothing reaches it
    errors: "collections.deque[str]" = field(default_factory=lambda: collections.deque(maxlen=_FEW_LINES))

    @property
    def name(self) -> str:
        return self.host.name

    @property
    def is_up(self) -> bool:
        return self.connection is not None and not self.lost

    @property
    def ranks(self) -> range:
        return range(self.first_rank, self.first_rank + self.host.slots)

    def note(self, message: Message) -> None:
        """Keep what the agent says of itself."""
        match message:
            case Stage(text):
                self.stage = text
            case HostInfo():
                self.info, self.stage = message, "answered"
            case Pong(sent_ns, wall_ns, monotonic_ns):
                self.clock.note(sent_ns, wall_ns, monotonic_ns)
            case Ready(shared):
                self.is_ready, self.shared = True, shared
            case Started(pids=pids):
                self.first_rank = min(map(int, pids))
            case AgentEnded(exit_code):
                self.exit_code = exit_code
            case Disconnected(exit_code, is_of_agent=True):
                self.exit_code = exit_code

    def send(self, message: Message) -> None:
        if self.channel is not None and self.speaks:
            with contextlib.suppress(OSError, ValueError):  # its end is about to be noticed
                self.channel.send(message)


class Agents:
    """All agents of a run. One thread calls `next` again and again."""

    def __init__(self, hosts: Iterable[Host], start: StartAgents, show_error: Callable[[str], None]) -> None:
        self.all = [Agent(node, host) for node, host in enumerate(hosts)]
        self._start, self._show_error = start, show_error
        self._received: queue.SimpleQueue[tuple[Agent, Connection, Message]] = queue.SimpleQueue()
        self._waiting: collections.deque[Agent] = collections.deque()
        self._connected: queue.SimpleQueue[tuple[Agent, Connection]] = queue.SimpleQueue()
        self._starting: set[Agent] = set()
        self._is_closed = False  # no agent is needed any more: one that connects now is cut off
        self._errors = selectors.DefaultSelector()
        self._reads_errors = False
        open_files.allow(_OWN_FILES + _FILES_PER_HOST * len(self.all))

    def start(self, agents: Iterable[Agent]) -> None:
        """All at once where there are few, else one after the other as there is room."""
        for agent in agents:
            fresh = Agent(agent.node, agent.host)
            for each in dataclasses.fields(Agent):
                setattr(agent, each.name, getattr(fresh, each.name))
            self._waiting.append(agent)
        self._start_more()

    def next(self, timeout_s: float) -> tuple[Agent, Message] | None:
        """The next message of any agent; None if none comes in this time."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._connect(*self._connected.get_nowait())
        try:
            agent, connection, message = self._received.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if agent.connection is not connection:  # it was started anew: this is of the agent before
            return None
        agent.heard_s = time.monotonic()
        if isinstance(message, Disconnected):
            agent.connection, agent.speaks = None, False
        if agent.speaks or isinstance(message, Disconnected):
            self._starting.discard(agent)
            self._start_more()
        return agent, message

    @property
    def has_more(self) -> bool:
        return not self._received.empty()

    @property
    def are_gone(self) -> bool:
        """Whether no agent is left, nor starting."""
        return not self._waiting and not self._starting and not any(agent.connection for agent in self.all)

    def send_all(self, message: Message) -> None:
        for agent in self.all:
            agent.send(message)

    def lose(self, agent: Agent, why: str) -> None:
        """Cut the connection: what is at its other end will notice, and end."""
        agent.lost = why
        _cut(agent.connection)

    def stop_starting(self) -> None:
        """Cut the connections of those that have not answered yet."""
        self._is_closed = True
        self._waiting.clear()
        for agent in self._starting:
            _cut(agent.connection)

    def kill(self) -> None:
        """Cut all connections."""
        self._is_closed = True
        self._waiting.clear()
        self._starting.clear()
        for agent in self.all:
            _cut(agent.connection)

    def _start_more(self) -> None:
        room = _AT_ONCE - len(self._starting)
        batch = [self._waiting.popleft() for _ in range(min(room, len(self._waiting)))]
        if batch:
            self._starting.update(batch)
            by_name = {agent.name: agent for agent in batch}
            self._start(
                [agent.host for agent in batch],
                lambda host, connection: self._connected.put((by_name[host.name], connection)),
            )

    def _connect(self, agent: Agent, connection: Connection) -> None:
        if self._is_closed or (agent not in self._starting and agent.connection is not None):
            self._starting.discard(agent)
            _cut(connection)
            return
        agent.connection, agent.channel = connection, Channel(connection.reader, connection.writer)
        agent.speaks = not connection.greets
        agent.heard_s = time.monotonic()
        agent.errors.extend(connection.errors)
        threading.stack_size(_STACK_BYTES)  # there may be a thousand
        threading.Thread(target=self._read, args=(agent, connection), name=f"from {agent.name}", daemon=True).start()
        threading.stack_size(0)
        if connection.process is not None and connection.process.stderr is not None and not connection.errors:
            self._errors.register(connection.process.stderr, selectors.EVENT_READ, (agent, connection, [b""]))
            if not self._reads_errors:
                self._reads_errors = True
                threading.Thread(target=self._read_errors, name="errors", daemon=True).start()

    def _read(self, agent: Agent, connection: Connection) -> None:
        """Runs in a thread of its own."""
        with contextlib.suppress(ValueError, OSError):  # the connection was cut, or its end is not whole
            if not connection.greets or self._read_greeting(agent, connection):
                channel = Channel(connection.reader, connection.writer)
                while (message := channel.receive()) is not None:
                    self._received.put((agent, connection, message))
        code = None
        if connection.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = connection.process.wait(_REAP_S)
            if connection.process.stderr is not None and not connection.errors:
                connection.errors_read.wait(_LAST_ERRORS_S)  # a shared connection's master may keep it open
        self._received.put((agent, connection, Disconnected(code, is_of_agent=not connection.greets)))

    def _read_greeting(self, agent: Agent, connection: Connection) -> bool:
        """Reads until the agent itself speaks: a login shell may print other things before."""
        while raw := connection.reader.readline():
            text = raw.decode(errors="replace").strip()
            if text == AGENT_SPEAKS:
                agent.speaks = True
                return True
            if text.startswith(GREETING):
                self._received.put((agent, connection, Stage(text.removeprefix(GREETING))))
        return False

    def _read_errors(self) -> None:
        """Reads what ssh, or a Python that fails early, prints.

        It is kept for an error message, or shown once the agent runs."""
        while True:
            for key, _ in self._errors.select(timeout=0.2):
                agent, connection, partial = key.data
                chunk = os.read(key.fd, 1 << 16)
                *lines, partial[0] = (partial[0] + chunk).split(b"\n")
                for raw in [*lines, *([partial[0]] if not chunk else [])]:
                    self._note_error(agent, raw.decode(errors="replace").rstrip())
                if not chunk:
                    self._errors.unregister(key.fileobj)
                    connection.errors_read.set()

    def _note_error(self, agent: Agent, text: str) -> None:
        if not text:
            return
        agent.errors.append(text)
        if agent.is_ready:
            self._show_error(f"{agent.name}: {text}")


def _cut(connection: Connection | None) -> None:
    if connection is None:
        return
    if connection.process is not None:
        connection.process.kill()
    if connection.hang_up is not None:
        connection.hang_up()
    with contextlib.suppress(OSError, ValueError):
        connection.writer.close()
