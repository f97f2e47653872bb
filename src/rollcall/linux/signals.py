"""Signals to the launcher: noted from the first moment on, and handled by the run's loop, or passed on to ranks."""

import signal

received: list[int] = []
forwarded: list[int] = []  # signals that are for the ranks
_FOR_RANKS = (signal.SIGUSR1, signal.SIGUSR2)  # schedulers announce the end of a job by these
_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def note(numbers: tuple[int, ...] = _HANDLED) -> None:
    """From now on, these signals are noted in `received` instead of ending this process."""
    for number in numbers:
        if signal.getsignal(number) is signal.SIG_IGN:
            continue  # nohup, or a shell that started us in the background
        # Not KeyboardInterrupt: raised in the middle of an import it may be lost.
        signal.signal(number, lambda number, _frame: received.append(number))


def note_for_ranks() -> None:
    """From now on, signals that schedulers send as a warning are noted in `forwarded`, unless the user has said that
    they end the run."""
    for number in _FOR_RANKS:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, lambda number, _frame: forwarded.append(number))


def is_caught(number: int, pid: int) -> bool:
    """Whether that process has a handler for the signal: without one, most signals would end it."""
    try:
        with open(f"/proc/{pid}/status") as status:
            caught = next(line for line in status if line.startswith("SigCgt:"))
    except (OSError, StopIteration):
        return False
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)
