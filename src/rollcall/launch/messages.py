"""What launcher and agent say to each other: one frozen dataclass per message, framed on a byte stream.

A frame is one line of JSON and, where the message carries output, as many raw bytes as the line says.
It needs nothing but a pipe, so the same words travel over ssh or a scheduler's step.
"""

import dataclasses
import json
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
    """The first word: what this host is to run."""

    plan: dict[str, Any]
    folder: str
    stdin_fd: int


@dataclasses.dataclass(frozen=True)
class Stop(Message):
    """End the ranks: with this signal first, and after the grace by force; with `now`, by force at once."""

    signal: int
    now: bool = False


# From the agent to the launcher.


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


class Wire:
    """Sends from any thread, receives in one. The end of the stream is received as None."""

    def __init__(self, reader: IO[bytes], writer: IO[bytes]) -> None:
        self._reader = reader
        self._writer = writer
        self._writing = threading.Lock()

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
