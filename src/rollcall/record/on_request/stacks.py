"""Writes the Python stacks of all threads of a rank on request, even while its main one is in C++.

There are two ways to ask. The first is a number in the ring, which the sampler's thread reads: it holds Python's lock
while it reads the stacks. The second is a signal, for a rank in which that thread cannot run, since another one keeps
the lock. It is answered at any moment, with the stack of the main thread alone: without the lock, the frames of a
thread that runs may be gone while they are read, and the process would crash. Some programs reset the handler, and
the signal would then end them, so one must check first whether the process listens.
"""

import faulthandler
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import FrameType

from rollcall.linux.signals import is_caught
from rollcall.record import ring_format
from rollcall.record.on_request import crashes
from rollcall.record.own_file import OwnFile

ASK = signal.SIGRTMIN + 6  # a signal that no library is known to use
_MOST_FRAMES = 100
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
_file: OwnFile | None = None  # of this rank
Frames = Iterable[tuple[str, int, str]]  # file, line and function, innermost first


def is_listening(pid: int, ring: Path) -> bool:
    """Whether a process has our handler for the signal. Without any the signal would end it: some programs, such as
    those that use Lightning, reset handlers that Python does not know of. A handler of the program does something else.
    """
    try:
        is_programs = _number(ring, ring_format.SIGNAL_AT)
    except OSError:  # the process has ended
        return False
    return is_caught(ASK, pid) and not is_programs


def _number(ring: Path, place: int) -> int:
    with open(ring, "rb") as file:
        file.seek(place)
        return int(ring_format.NUMBER.unpack(file.read(ring_format.NUMBER.size))[0])


def answer(path: Path) -> None:
    """From now on, the signal makes this process write the stack of its main thread there."""
    global _file
    _file = OwnFile(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    faulthandler.register(ASK, file=_file.fd, all_threads=False)
    crashes.write_to(_file.fd)


def is_programs() -> bool:
    """Whether the program itself has chosen what the signal does. Python does not know of faulthandler's handler."""
    return signal.getsignal(ASK) not in (signal.SIG_DFL, None)


def write(main: int) -> None:
    """Write the stacks of all threads but this one, in the form of faulthandler: the main thread is the current one."""
    frames = sys._current_frames()
    frames.pop(threading.get_ident(), None)
    current = frames.pop(main, None)
    text = "".join(as_text(f"Thread 0x{ident:016x}", _frames_of(frame)) for ident, frame in frames.items())
    if _file is not None:
        os.write(
            _file.fd, (text + as_text(f"Current thread 0x{main:016x}", _frames_of(current))).encode(errors="replace")
        )


def _frames_of(frame: FrameType | None) -> Frames:
    return ((each.f_code.co_filename, line, each.f_code.co_name) for each, line in traceback.walk_stack(frame))


def as_text(thread: str, frames: Frames) -> str:
    """Returns the stacks in the form of faulthandler."""
    lines = [f'  File "{file}", line {line} in {function}\n' for file, line, function in frames]
    return f"{thread} (most recent call first):\n{''.join(lines[:_MOST_FRAMES])}\n"


def parse_main_thread(text: str) -> list[tuple[str, int, str]]:
    """The stack of the main thread in what `write` wrote."""
    block = text.rpartition("Current thread")[2].split("\n\n")[0]
    return [(file, int(line), function) for file, line, function in _FRAME.findall(block)]


def ask_in_ring(path: Path) -> None:
    """Ask the rank that writes this ring, on this host."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        (asked,) = ring_format.NUMBER.unpack(os.pread(fd, ring_format.NUMBER.size, ring_format.ASKED_AT))
        os.pwrite(fd, ring_format.NUMBER.pack((asked + 1) % 2**64), ring_format.ASKED_AT)
    finally:
        os.close(fd)
