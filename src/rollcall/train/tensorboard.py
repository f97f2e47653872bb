"""A record that TensorBoard reads, in its own format and by its own classes.

Not by torch's SummaryWriter: that writes in a thread, where a full disk ends in a traceback and in silence thereafter.
"""

import io
import os
import socket
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rollcall.train.append import append

_FORMAT = "brain.Event:2"


def is_installed() -> bool:
    return find_spec("tensorboard") is not None


class Board:
    """One file of events. Opened for a training that goes on, it takes back what was written after its step."""

    def __init__(self, folder: Path, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        self._event: Any = Event
        self._path = folder / f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        folder.mkdir(parents=True, exist_ok=True)
        self._put(Event(file_version=_FORMAT), Event(step=step + 1, session_log=SessionLog(status=SessionLog.START)))

    def write(self, record: Mapping[str, Any]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        numbers = {name: value for name, value in record.items() if name != "step" and isinstance(value, int | float)}
        values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        self._put(self._event(step=record["step"], summary=Summary(value=values)))

    def _put(self, *events: Any) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        framed = io.BytesIO()
        for event in events:
            event.wall_time = time.time()
            RecordWriter(framed).write(event.SerializeToString())
        append(self._path, framed.getvalue())
