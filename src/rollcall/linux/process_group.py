"""Signals to a rank and the processes that it has started."""

import contextlib
import os


def send(leader: int, number: int) -> None:
    """Sends a signal to the whole group, as a terminal does: workers of a DataLoader get it too. If the leader has no
    group of its own yet, it alone gets the signal. If it has ended, nothing is sent."""
    try:
        os.killpg(leader, number)
    except ProcessLookupError:
        with contextlib.suppress(ProcessLookupError):
            os.kill(leader, number)
