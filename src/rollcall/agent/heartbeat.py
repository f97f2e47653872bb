"""Reads the launcher's messages. If the connection is lost, ends the ranks of this host."""

import os
import threading
import time
from collections.abc import Callable
from typing import NoReturn

from rollcall.protocol.channel import Channel
from rollcall.protocol.messages import Message
from rollcall.protocol.timing import SILENCE_S

# How long ranks may take to end once the launcher is gone: all processes must have ended within 3 s.
_ORPHANED_GRACE_S = 1.0
_LOOK_S = 0.25


class Heartbeat:
    """If the launcher dies, this host stops its ranks."""

    def __init__(self, channel: Channel, handle: Callable[[Message], None]) -> None:
        self._channel, self._handle = channel, handle
        self._received_s = time.monotonic()

    def read(self) -> None:
        """Runs in a thread of its own: the end of the stream is the end of the launcher."""
        threading.Thread(target=self._read, name="launcher", daemon=True).start()

    def require(self, supervisor: int) -> None:
        """Over a network: a cut cable does not end the stream, nor does a killed supervisor; silence does."""
        self._received_s = time.monotonic()
        threading.Thread(target=self._watch, args=(supervisor,), name="heartbeat", daemon=True).start()

    def _read(self) -> None:
        message: Message | None
        while (message := self._channel.receive()) is not None:
            self._received_s = time.monotonic()
            self._handle(message)
        _end()

    def _watch(self, supervisor: int) -> None:
        while os.getppid() == supervisor and time.monotonic() - self._received_s < SILENCE_S:
            time.sleep(_LOOK_S)
        _end()


def _end() -> NoReturn:
    from rollcall.linux import process_tree  # here: it imports psutil, which a run that ends well does not need

    process_tree.end_all(_ORPHANED_GRACE_S)
    os._exit(1)
