"""Signals that would end the launcher: noted from the first moment on, and handled by the run's loop."""

import signal

received: list[int] = []
_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def note(numbers: tuple[int, ...] = _HANDLED) -> None:
    """From now on, these signals are noted in `received` instead of ending this process."""
    for number in numbers:
        if signal.getsignal(number) is signal.SIG_IGN:
            continue  # nohup, or a shell that started us in the background
        # Not KeyboardInterrupt: raised in the middle of an import it may be lost.
        signal.signal(number, lambda number, _frame: received.append(number))
