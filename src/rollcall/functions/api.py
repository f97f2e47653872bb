"""`rollcall.spawn`: a Python function on N ranks, from a script, a REPL or a notebook."""

import atexit
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from rollcall.coordinator.failure import first_of
from rollcall.errors import RankError
from rollcall.functions.pool import Answer, CallServer

_server = CallServer()
atexit.register(_server.close)


def spawn(
    fn: Callable[..., Any],
    nprocs: int,
    args: Sequence[Any] = (),
    *,
    timeout_s: float | None = None,
    env: dict[str, str] | None = None,
) -> list[Any]:
    """Call `fn(rank, *args)` on `nprocs` ranks and return what they return, in rank order.

    As with torch.multiprocessing.spawn the rank comes first; a function that has no room for it is called
    as `fn(*args)`, and learns its rank from `rollcall.init()`. The function may be defined anywhere, in
    `__main__` or a notebook cell too. If a rank fails, the first one's own exception is raised here, with
    its traceback as a note. The first call starts a server that imports torch; later ones take
    milliseconds.
    """
    answers = _server.call(bound(fn, tuple(args)), nprocs, timeout_s=timeout_s, env=env)
    raise_first(answers, timeout_s)
    return [answer.value for answer in answers]


def bound(fn: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[int], Any]:
    """The function of a rank alone."""
    if _takes(fn, (0, *args)):
        return functools.partial(_with_rank, fn, args)
    return functools.partial(_without_rank, fn, args)


def _takes(fn: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    try:
        inspect.signature(fn).bind(*args)
    except TypeError:
        return False
    except ValueError:  # built in, and says nothing about its arguments
        return True
    return True


def _with_rank(fn: Callable[..., Any], args: tuple[Any, ...], rank: int) -> Any:
    return fn(rank, *args)


def _without_rank(fn: Callable[..., Any], args: tuple[Any, ...], _rank: int) -> Any:
    return fn(*args)


def raise_first(answers: list[Answer], timeout_s: float | None) -> None:
    first = first_of([answer for answer in answers if answer.failed])
    if first is not None and first.error is not None:
        if first.traceback:
            first.error.add_note(f"\nOn rank {first.rank} of {len(answers)}:\n{first.traceback}")
        raise first.error
    hung = [a for a in answers if a.exit_code is None]
    if hung:
        error = RankError(f"{len(hung)} of {len(answers)} ranks were still running after {timeout_s} s and were ended")
        error.add_note(f"\nTheir stacks:\n{stacks(hung)}")
        raise error


def stacks(hung: list[Answer]) -> str:
    """Where each rank was when it was ended."""
    return "\n\n".join(f"rank {a.rank}:\n{a.stacks or '(no stack: it did not answer)'}" for a in hung)
