"""stdin, stdout and stderr of a command: closed ones, those that cannot show every character, or that nobody takes."""

import errno
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

# Nobody reads it, its disk or a limit is full, its terminal is gone.
_LOST = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def prepare() -> None:
    """Open /dev/null where a standard stream is closed, as with `>&-`: else the next file that is opened gets its
    number, and Python has no stream there. Characters that the encoding of a stream lacks become question marks."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # which takes the lowest free number: this one
            setattr(sys, name, os.fdopen(fd, "w" if fd else "r"))
    for stream in (sys.stdout, sys.stderr):
        if stream.errors != "backslashreplace" and hasattr(stream, "reconfigure"):  # as stderr has it
            stream.reconfigure(errors="replace")


def can_show(stream: "TextIO", text: str) -> bool:
    try:
        text.encode(stream.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def is_lost_output(error: OSError) -> bool:
    """Whether it may be about a stream, and is about no file that has a name."""
    return error.errno in _LOST and error.filename is None


def discard(stream: "TextIO") -> None:
    """Write to nowhere from now on, also what still waits in the buffer."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def discard_broken_output() -> None:
    """Discard stdout and stderr if their reader is gone, as with `rollcall run … | head`."""
    import contextlib  # here: `rollcall run` starts without them
    import select

    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a stream without a number, or one that is closed
            poll = select.poll()
            poll.register(stream.fileno(), 0)
            if any(event & select.POLLERR for _, event in poll.poll(0)):
                discard(stream)
