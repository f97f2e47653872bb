"""The agents of a run, from the launcher's side: starting them, hearing them all, losing one.

Each has a line, which is a pipe to its process (ssh, nsenter, …) or a connection it made to us. What comes
along all lines goes into one queue, so that one thread decides.
"""

import collections
import contextlib
import dataclasses
import os
import queue
import resource
import selectors
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import IO

from rollcall.agent.supervisor import AGENT_SPEAKS, GREETING
from rollcall.coordinator.clock_offsets import Clock
from rollcall.linux.child_process import Child
from rollcall.protocol.hosts import Host
from rollcall.protocol.messages import Message, Present, Wire

_AT_ONCE = 64  # so many may be on their way up at a time
_FEW_LINES = 20
_STACK_BYTES = 512 << 10
_REAP_S = 5.0
_LAST_WORDS_S = 0.5


@dataclass(frozen=True)
class Line:
    """How one agent is heard and spoken to. `process`, where there is one, is our end of it."""

    reader: IO[bytes]
    writer: IO[bytes]
    process: "subprocess.Popen[bytes] | Child | None" = None
    greets: bool = True  # says how far it has come before it speaks in frames
    errors: tuple[str, ...] = ()  # what was said of it before there was a line
    hang_up: Callable[[], None] | None = None  # for a connection
    errors_heard: threading.Event = field(default_factory=threading.Event)  # all of them


@dataclass(frozen=True)
class Stage(Message):
    """How far an agent has come on its way up, in words. Not sent: read from its greeting."""

    text: str


@dataclass(frozen=True)
class Gone(Message):
    """The line is at its end; the exit code of our end of it, if it had one. Not sent."""

    exit_code: int | None


@dataclass(eq=False)
class Member:
    """One host and what we know of its agent."""

    node: int
    host: Host
    line: Line | None = None
    wire: Wire | None = None
    stage: str = "not yet reached"
    speaks: bool = False  # its agent has answered, so there is somebody to send messages to
    present: Present | None = None
    ordered: bool = False
    ready: bool = False
    agent_code: int | None = None  # how its agent ended, if its keeper could still tell
    shared: bool = True
    first_rank: int = 0
    heard_s: float = 0.0
    clock: Clock = field(default_factory=Clock)
    lost: str = ""  # why it is no longer with us, to follow its name
    cut_off: bool = False  # it may still be there, but nothing reaches it
    errors: "collections.deque[str]" = field(default_factory=lambda: collections.deque(maxlen=_FEW_LINES))

    @property
    def name(self) -> str:
        return self.host.name

    @property
    def is_up(self) -> bool:
        return self.line is not None and not self.lost

    def send(self, message: Message) -> None:
        if self.wire is not None and self.speaks:
            with contextlib.suppress(OSError, ValueError):  # its end is about to be noticed
                self.wire.send(message)


# Starts agents on hosts and calls back with each line, sooner or later, from this thread or another.
Start = Callable[[list[Member], Callable[[Member, Line], None]], None]


class Crew:
    """All agents of a run. `next` is to be called again and again, by one thread."""

    def __init__(self, hosts: Iterable[Host], start: Start, show_error: Callable[[str], None]) -> None:
        self.members = [Member(node, host) for node, host in enumerate(hosts)]
        self._start, self._show_error = start, show_error
        self._events: queue.SimpleQueue[tuple[Member, Message]] = queue.SimpleQueue()
        self._waiting: collections.deque[Member] = collections.deque()
        self._lines: queue.SimpleQueue[tuple[Member, Line]] = queue.SimpleQueue()
        self._coming: set[Member] = set()
        self._errors = selectors.DefaultSelector()
        self._listens_to_errors = False
        _allow_files(8 * len(self.members))

    def start(self, members: Iterable[Member]) -> None:
        """Bring agents up: at once where there are few, else one after the other as there is room."""
        for member in members:
            fresh = Member(member.node, member.host)
            for each in dataclasses.fields(Member):
                setattr(member, each.name, getattr(fresh, each.name))
            self._waiting.append(member)
        self._start_more()

    def adopt(self, line: Line) -> None:
        """Take the one agent that was started before anything else."""
        self._connect(self.members[0], line)

    def next(self, timeout_s: float) -> tuple[Member, Message] | None:
        """What has happened next, if anything does within so long."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._connect(*self._lines.get_nowait())
        try:
            member, message = self._events.get(timeout=timeout_s)
        except queue.Empty:
            return None
        member.heard_s = time.monotonic()
        match message:
            case Stage(text):
                member.stage = text
            case Present():
                member.present, member.stage = message, "answered"
        if member.speaks or isinstance(message, Gone):
            self._coming.discard(member)
            self._start_more()
        return member, message

    @property
    def has_more(self) -> bool:
        return not self._events.empty()

    @property
    def is_gone(self) -> bool:
        """Whether no agent is left, nor on its way."""
        return not self._waiting and not self._coming and not any(member.line for member in self.members)

    def send_all(self, message: Message) -> None:
        for member in self.members:
            member.send(message)

    def lose(self, member: Member, why: str) -> None:
        """Cut the line: what is at its other end will notice, and end."""
        member.lost = why
        _cut(member.line)

    def await_no_more(self) -> None:
        """Cut the lines of those that are still on their way up."""
        self._waiting.clear()
        for member in self._coming:
            _cut(member.line)

    def kill(self) -> None:
        """Cut all lines."""
        self._waiting.clear()
        self._coming.clear()
        for member in self.members:
            _cut(member.line)

    def _start_more(self) -> None:
        room = _AT_ONCE - len(self._coming)
        batch = [self._waiting.popleft() for _ in range(min(room, len(self._waiting)))]
        if batch:
            self._coming.update(batch)
            self._start(batch, lambda member, line: self._lines.put((member, line)))

    def _connect(self, member: Member, line: Line) -> None:
        if member not in self._coming and member.line is not None:
            _cut(line)
            return
        member.line, member.wire, member.speaks = line, Wire(line.reader, line.writer), not line.greets
        member.heard_s = time.monotonic()
        member.errors.extend(line.errors)
        threading.stack_size(_STACK_BYTES)  # there may be a thousand
        threading.Thread(target=self._receive, args=(member, line), name=f"from {member.name}", daemon=True).start()
        threading.stack_size(0)
        if line.process is not None and line.process.stderr is not None and not line.errors:
            self._errors.register(line.process.stderr, selectors.EVENT_READ, (member, line, [b""]))
            if not self._listens_to_errors:
                self._listens_to_errors = True
                threading.Thread(target=self._hear_errors, name="errors", daemon=True).start()

    def _receive(self, member: Member, line: Line) -> None:
        """In a thread of its own."""
        with contextlib.suppress(ValueError, OSError, KeyError, TypeError):
            if not line.greets or self._hear_greeting(member, line):
                wire = Wire(line.reader, line.writer)
                while (message := wire.receive()) is not None:
                    self._events.put((member, message))
        code = None
        if line.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = line.process.wait(_REAP_S)
            if line.process.stderr is not None and not line.errors:
                line.errors_heard.wait(_LAST_WORDS_S)  # a shared connection's master may keep it open
        if member.line is line:  # else it has a new one already
            member.line, member.speaks = None, False
            self._events.put((member, Gone(code)))

    def _hear_greeting(self, member: Member, line: Line) -> bool:
        """Read on until the agent itself speaks: the shell on the way may have had its own things to say."""
        while raw := line.reader.readline():
            text = raw.decode(errors="replace").strip()
            if text == AGENT_SPEAKS:
                member.speaks = True
                return True
            if text.startswith(GREETING):
                self._events.put((member, Stage(text.removeprefix(GREETING))))
        return False

    def _hear_errors(self) -> None:
        """What ssh, or a Python that fails early, says; kept for the verdict, or shown once the agent runs."""
        while True:
            for key, _ in self._errors.select(timeout=0.2):
                member, line, partial = key.data
                chunk = os.read(key.fd, 1 << 16)
                *lines, partial[0] = (partial[0] + chunk).split(b"\n")
                for raw in [*lines, *([partial[0]] if not chunk else [])]:
                    self._note_error(member, raw.decode(errors="replace").rstrip())
                if not chunk:
                    self._errors.unregister(key.fileobj)
                    line.errors_heard.set()

    def _note_error(self, member: Member, text: str) -> None:
        if not text:
            return
        member.errors.append(text)
        if member.ready:
            self._show_error(f"{member.name}: {text}")


def _cut(line: Line | None) -> None:
    if line is None:
        return
    if line.process is not None:
        line.process.kill()
    if line.hang_up is not None:
        line.hang_up()
    with contextlib.suppress(OSError, ValueError):
        line.writer.close()


def _allow_files(count: int) -> None:
    """Three pipes a host: the usual limit of 1024 would end at 300 hosts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(count + 256, hard) if hard != resource.RLIM_INFINITY else count + 256
    if wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
