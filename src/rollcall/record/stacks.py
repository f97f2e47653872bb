"""Writes the Python stacks of all threads of a rank on request, even while its main one is in C++; and on crashes."""

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
    except OSError:  # the process has ended
        return False
    caught = next((line.removeprefix(_CAUGHT) for line in lines if line.startswith(_CAUGHT)), "0")
    return bool(int(caught, 16) >> (ASK - 1) & 1)


def answer(path: Path) -> None:
    """From now on, the signal makes this process write its stacks there."""
    file = open(path, "wb", buffering=0)  # noqa: SIM115  (stays open until the process ends)
    faulthandler.register(ASK, file=file, all_threads=True)
    if not faulthandler.is_enabled():  # otherwise the program has chosen where they go
        faulthandler.enable(file=file, all_threads=False)
