"""The agent's ear: it hears the launcher, and notices when there is nothing left to hear."""

import os
import threading
import time
from collections.abc import Callable
from typing import NoReturn

from rollcall.protocol.messages import Message, Wire

# How long ranks may take to end once the launcher is gone: the whole tree is to be away in 3 s.
_ORPHANED_GRACE_S = 1.0
PING_S = 2.0
# A cut of five seconds is over before: TCP's next try comes after 6.2 s, and the last ping was up to 2 s before.
SILENCE_S = 10.0
_LOOK_S = 0.25


class Ear:
    """Hands on what the launcher says. Its silence for good means that it was killed: then nothing may stay."""

    def __init__(self, wire: Wire, heed: Callable[[Message], None]) -> None:
        self._wire, self._heed = wire, heed
        self._heard_s = time.monotonic()

    def listen(self) -> None:
        threading.Thread(target=self._listen, name="launcher", daemon=True).start()

    def watch(self, keeper: int) -> None:
        """For a host among several: a cut cable says nothing, and a killed keeper neither."""
        self._heard_s = time.monotonic()
        threading.Thread(target=self._watch, args=(keeper,), name="watch", daemon=True).start()

    def _listen(self) -> None:
        message: Message | None
        while (message := self._wire.receive()) is not None:
            self._heard_s = time.monotonic()
            self._heed(message)
        _end()

    def _watch(self, keeper: int) -> None:
        while os.getppid() == keeper and time.monotonic() - self._heard_s < SILENCE_S:
            time.sleep(_LOOK_S)
        _end()


def _end() -> NoReturn:
    from rollcall.linux import process_tree

    process_tree.end_all(_ORPHANED_GRACE_S)
    os._exit(1)
