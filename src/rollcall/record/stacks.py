"""All threads' Python stacks of a rank, on request, even while its main thread sits in C++; and where it crashed."""

import faulthandler
import signal
from pathlib import Path

ASK = signal.SIGRTMIN + 6  # a signal that no library is known to use
_CAUGHT = "SigCgt:"


def is_listening(pid: int) -> bool:
    """Whether a process has a handler for the signal. Without one the signal would end it: some programs, such as those
    that use Lightning, reset handlers that Python does not know of."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:  # it is gone
        return False
    caught = next((line.removeprefix(_CAUGHT) for line in lines if line.startswith(_CAUGHT)), "0")
    return bool(int(caught, 16) >> (ASK - 1) & 1)


def answer(path: Path) -> None:
    """From now on, the signal makes this process write its stacks there."""
    file = open(path, "wb", buffering=0)  # noqa: SIM115  (open as long as the process lives)
    faulthandler.register(ASK, file=file, all_threads=True)
    if not faulthandler.is_enabled():  # else the program has said where it wants them
        faulthandler.enable(file=file, all_threads=False)
