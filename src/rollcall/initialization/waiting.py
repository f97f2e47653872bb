"""Waiting that ends: for an answer that may not come, and for C++ that may not return."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def poll(ask: Callable[[], T | None], deadline: float) -> T | None:
    """Ask until there is an answer or the time is over; the longer it takes, the less often."""
    begun = time.monotonic()
    while True:
        answer = ask()
        now = time.monotonic()
        if answer is not None or now >= deadline:
            return answer
        # Hundreds of ranks share one server: waits that are long anyway may be 5 % longer.
        time.sleep(min(0.1, max(0.002, 0.05 * (now - begun)), deadline - now))


def run_within(work: Callable[[], T], limit_s: float) -> T:
    """Run in a thread and wait for it, so that C++ that never returns cannot keep us; or TimeoutError."""
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
    except RuntimeError:  # from Python 3.12 on no thread starts at the interpreter's end
        run()
    else:
        thread.join(limit_s)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError
    return results[0]
