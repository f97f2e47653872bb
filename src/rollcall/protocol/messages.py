"""What launcher and agent say to each other: one frozen dataclass per message, framed on a byte stream.

A frame is one line of JSON and, where the message carries output, as many raw bytes as the line says.
It needs nothing but a pipe, so the same words travel over ssh or a scheduler's step.
"""

import dataclasses
import json
import os
import threading
from typing import IO, Any, ClassVar


@dataclasses.dataclass(frozen=True)
class Message:
    """The base of all messages; `data`, where there is one, travels as raw bytes."""

    kinds: ClassVar[dict[str, type["Message"]]] = {}

    def __init_subclass__(cls) -> None:
        Message.kinds[cls.__name__] = cls


# From the launcher to the agent.


@dataclasses.dataclass(frozen=True)
class Order(Message):
    """What this host is to run. A host among several then waits for each attempt to begin."""

    plan: dict[str, Any]
    folder: str
    stdin_fd: int
    env: dict[str, str] = dataclasses.field(default_factory=dict)  # to be added to the environment of all there


@dataclasses.dataclass(frozen=True)
class Stop(Message):
    """End the ranks: with this signal first, and after the grace by force; with `now`, by force at once."""

    signal: int
    now: bool = False


@dataclasses.dataclass(frozen=True)
class Stacks(Message):
    """Have the ranks write down where they are, and see which of the other hosts can still be reached."""

    others: dict[str, str] = dataclasses.field(default_factory=dict)  # their addresses by name


@dataclasses.dataclass(frozen=True)
class Look(Message):
    """Somebody watches: send what is new in the rings of this attempt."""

    attempt: int


@dataclasses.dataclass(frozen=True)
class Ping(Message):
    """Are you there, and what do your clocks say? Whoever hears none for a while is cut off."""

    sent_ns: int  # by the monotonic clock of who asks


@dataclasses.dataclass(frozen=True)
class Open(Message):
    """To the master: open a port where the ranks of this attempt will meet, and answer there to this token."""

    attempt: int
    port: int
    token: str


@dataclasses.dataclass(frozen=True)
class Try(Message):
    """To the others: under which of these addresses does the master answer to the token?"""

    attempt: int
    addresses: list[str]
    port: int
    token: str


@dataclasses.dataclass(frozen=True)
class Close(Message):
    """To the master: all have tried; answer no more, for ranks will come there next."""


@dataclasses.dataclass(frozen=True)
class Measure(Message):
    """How fast is the way to the host that answers to the token there?"""

    addresses: list[str]
    port: int
    token: str


@dataclasses.dataclass(frozen=True)
class Probe(Message):
    """How many GPUs does torch see there? It takes a while: torch is asked."""


@dataclasses.dataclass(frozen=True)
class Begin(Message):
    """Start the ranks of an attempt, at this place in the world."""

    attempt: int
    node_rank: int
    nnodes: int
    first_rank: int
    world_size: int
    master_addr: str
    master_port: int
    interface: str | None


@dataclasses.dataclass(frozen=True)
class Cancel(Message):
    """The attempt has failed elsewhere: end its ranks here."""

    attempt: int


@dataclasses.dataclass(frozen=True)
class Dismiss(Message):
    """The run is over: go."""


# From the agent to the launcher.


@dataclasses.dataclass(frozen=True)
class Present(Message):
    """The answer to the roll call: who this host is."""

    host: str
    python: str
    torch: str
    rollcall: str
    cpus: int
    gpus: int


@dataclasses.dataclass(frozen=True)
class Pong(Message):
    """The answer to a ping, with this host's time by both clocks."""

    sent_ns: int
    wall_ns: int
    monotonic_ns: int


@dataclasses.dataclass(frozen=True)
class Still(Message):
    """The ranks of this host have got no further for as long as a hang takes, and whether one of them waits."""

    is_still: bool
    waits: bool


@dataclasses.dataclass(frozen=True)
class Shown(Message):
    """The ranks have written down where they are, and the launcher has their files."""

    unreachable: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Looked(Message):
    """What is new in the rings has been sent."""


@dataclasses.dataclass(frozen=True)
class Opened(Message):
    """The master listens: its port, and its interfaces by the addresses where others may find it, likeliest first."""

    attempt: int
    port: int
    addresses: dict[str, str]


@dataclasses.dataclass(frozen=True)
class Closed(Message):
    """The master's door is closed; the port stays its own."""


@dataclasses.dataclass(frozen=True)
class Tried(Message):
    """Where the master answered, and from which own address and interface (by the master's address)."""

    attempt: int
    own: dict[str, tuple[str, str]]
    errors: dict[str, str]


@dataclasses.dataclass(frozen=True)
class Measured(Message):
    """The way to another host: round trip and throughput, or why there are none."""

    round_trip_s: float = 0.0
    bytes_per_s: float = 0.0
    error: str = ""


@dataclasses.dataclass(frozen=True)
class Probed(Message):
    """The GPUs that torch sees."""

    gpus: int


@dataclasses.dataclass(frozen=True)
class Loaded(Message):
    """Torch's libraries are there; the rest of its import needs one core, and the launcher may have the other."""


@dataclasses.dataclass(frozen=True)
class Ready(Message):
    """Torch is imported, ranks can be forked. `shared`: the run's folder is the launcher's own, seen from here."""

    shared: bool


@dataclasses.dataclass(frozen=True)
class Done(Message):
    """All ranks of this host have ended well."""

    attempt: int


@dataclasses.dataclass(frozen=True)
class File(Message):
    """Part of a file that belongs into the run's folder, from a host that does not share it."""

    path: str
    at: int
    data: bytes = b""


@dataclasses.dataclass(frozen=True)
class Started(Message):
    """All ranks of this host run. `pids` is by rank (as a string: JSON knows no other keys)."""

    attempt: int
    host: str
    node_rank: int
    world_size: int
    master: str
    pids: dict[str, int]


@dataclasses.dataclass(frozen=True)
class Output(Message):
    """What a rank wrote: stream 1 is stdout, 2 is stderr."""

    rank: int
    stream: int
    data: bytes = b""


@dataclasses.dataclass(frozen=True)
class Ended(Message):
    """A rank ended, by itself or because we `asked` it to; a negative exit code is the signal that killed it."""

    attempt: int
    rank: int
    exit_code: int
    ended_ns: int
    asked: bool
    cause: str = ""  # what we know beyond the exit code, to follow the rank's name


@dataclasses.dataclass(frozen=True)
class AttemptOver(Message):
    """The attempt failed, and all its ranks on this host are gone."""

    attempt: int


@dataclasses.dataclass(frozen=True)
class Note(Message):
    """A sentence for the user."""

    text: str


@dataclasses.dataclass(frozen=True)
class Refused(Message):
    """The agent cannot do what it was asked to: the sentence, and the exit code of the run."""

    text: str
    exit_code: int


@dataclasses.dataclass(frozen=True)
class AgentEnded(Message):
    """The last word of a keeper whose agent was killed."""

    exit_code: int


class Wire:
    """Sends from any thread, receives in one. The end of the stream is received as None."""

    def __init__(self, reader: IO[bytes], writer: IO[bytes]) -> None:
        self._reader = reader
        self._writer = writer
        self._writing = threading.Lock()

    @classmethod
    def on(cls, reader_fd: int, writer_fd: int, buffered: bool = True) -> "Wire":
        """Over these files. Unbuffered: not a byte behind the last message is read."""
        return cls(open(reader_fd, "rb", buffering=-1 if buffered else 0), open(writer_fd, "wb"))

    def filenos(self) -> tuple[int, int]:
        return self._reader.fileno(), self._writer.fileno()

    def send(self, message: Message) -> None:
        fields = {f.name: getattr(message, f.name) for f in dataclasses.fields(message)}
        data: bytes = fields.pop("data", b"")
        head = {"kind": type(message).__name__, "size": len(data), **fields}
        with self._writing:
            self._writer.write(json.dumps(head).encode() + b"\n" + data)
            self._writer.flush()

    def receive(self) -> Message | None:
        line = self._reader.readline()
        if not line.endswith(b"\n"):
            return None
        head = json.loads(line)
        kind, size = Message.kinds[head.pop("kind")], head.pop("size")
        if size:
            head["data"] = self._reader.read(size)
            if len(head["data"]) < size:
                return None
        return kind(**head)


def take_stdio() -> tuple[int, int]:
    """An agent's stdin and stdout, kept for the wire alone: a stray print must not fall into the frames."""
    reader, writer = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    return reader, writer
