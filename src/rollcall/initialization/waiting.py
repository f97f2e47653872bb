"""Waiting with a time limit: for a value that may never appear, and for C++ calls that may never return."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class TimeSource:
    """The time, and how to let it pass."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


SYSTEM_TIME = TimeSource()


def poll(ask: Callable[[], T | None], deadline: float, clock: TimeSource = SYSTEM_TIME) -> T | None:
    """Ask until there is a value or the deadline has passed; the longer it takes, the less often."""
    begun = clock.now()
    while True:
        value = ask()
        now = clock.now()
        if value is not None or now >= deadline:
            return value
        # Hundreds of ranks share one server: waits that are long anyway may be 5 % longer.
        clock.sleep(min(0.1, max(0.002, 0.05 * (now - begun)), deadline - now))


def run_with_timeout(work: Callable[[], T], limit_s: float) -> T:
    """Run in a thread, so that a C++ call that never returns cannot block this one; or TimeoutError."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="rollcall", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # from Python 3.12 on no thread starts while the interpreter shuts down
        run()
    else:
        thread.join(limit_s)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError
    return results[0]
