"""Writes metrics in TensorBoard's file format.

TensorBoard is imported inside functions: it need not be installed.

Not with torch's SummaryWriter: it writes in a thread, which ends with a traceback when the disk is full, and from then
on nothing is written.
"""

import io
import os
import socket
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rollcall.train.reporting.append import append

_FORMAT = "brain.Event:2"


def is_installed() -> bool:
    return find_spec("tensorboard") is not None


class TensorBoardWriter:
    """Writes one file of events. TensorBoard then ignores what older files say about steps after `step`."""

    def __init__(self, folder: Path, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        self._event: Any = Event
        self._path = folder / f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        folder.mkdir(parents=True, exist_ok=True)
        start = SessionLog(status=SessionLog.START)
        self._append(Event(file_version=_FORMAT), Event(step=step + 1, session_log=start))

    def write(self, record: Mapping[str, Any]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        numbers = {name: value for name, value in record.items() if name != "step" and isinstance(value, int | float)}
        values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        self._append(self._event(step=record["step"], summary=Summary(value=values)))

    def _append(self, *events: Any) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        encoded = io.BytesIO()
        for event in events:
            event.wall_time = time.time()
            RecordWriter(encoded).write(event.SerializeToString())
        append(self._path, encoded.getvalue())
