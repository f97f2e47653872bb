"""Signals to a rank and the processes that it has started."""

import contextlib
import os


def send(leader: int, number: int) -> None:
    """To the whole group, as a terminal does: workers of a DataLoader hear it too. A leader so young that it has no
    group of its own yet gets it alone; of one that is gone, nothing."""
    try:
        os.killpg(leader, number)
    except ProcessLookupError:
        with contextlib.suppress(ProcessLookupError):
            os.kill(leader, number)
