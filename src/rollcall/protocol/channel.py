"""Sends and receives messages over a byte stream: a pipe, ssh's, or a connection.

A frame is one line of JSON and, where the message carries data, as many raw bytes as the line says.
"""

import json
import os
import threading
from typing import IO, Any

from rollcall.protocol.messages import Message, UnknownMessage

# An agent on another host prints lines before it sends messages: a login shell may print other things first.
GREETING = "rollcall> "  # begins a line that says how far the start has come
AGENT_SPEAKS = f"{GREETING}agent"  # the last such line: messages follow


class Channel:
    """Sends from any thread, receives in one. The end of the stream is received as None."""

    def __init__(self, reader: IO[bytes], writer: IO[bytes]) -> None:
        self._reader = reader
        self._writer = writer
        self._writing = threading.Lock()

    @classmethod
    def on(cls, reader_fd: int, writer_fd: int, buffered: bool = True) -> "Channel":
        """Over these files. Unbuffered: not a byte behind the last message is read."""
        return cls(open(reader_fd, "rb", buffering=-1 if buffered else 0), open(writer_fd, "wb"))

    def filenos(self) -> tuple[int, int]:
        return self._reader.fileno(), self._writer.fileno()

    def send(self, message: Message) -> None:
        fields = dict(vars(message))
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
        kind, size = head.pop("kind"), head.pop("size")
        if size:
            head["data"] = self._reader.read(size)
            if len(head["data"]) < size:
                return None
        return _message(kind, head)


def _message(kind: str, fields: dict[str, Any]) -> Message:
    """A message that this version does not know, or knows with other fields, is received by its name."""
    known = Message.kinds.get(kind)
    if known is None:
        return UnknownMessage(kind)
    try:
        return known(**fields)
    except TypeError:
        return UnknownMessage(kind)


def take_stdio() -> tuple[int, int]:
    """An agent's stdin and stdout, kept for the channel alone: a stray print must not fall into the frames."""
    reader, writer = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    return reader, writer
