"""When nobody reads our output any more, as behind `rollcall run … | head`."""

import contextlib
import os
import select
import sys


def discard_broken_output() -> None:
    """Write to nowhere from now on, where nobody reads our stdout or stderr any more."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            if _is_broken(stream.fileno()):
                os.dup2(null, stream.fileno())
    os.close(null)


def _is_broken(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))
