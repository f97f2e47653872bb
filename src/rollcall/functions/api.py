"""`rollcall.spawn`: a Python function on N ranks, from a script, a REPL or a notebook."""

import atexit
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from rollcall.errors import RankError
from rollcall.functions.pool import FunctionResult, RankPool
from rollcall.protocol.first_failure import first_of

_server = RankPool()
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

    As with torch.multiprocessing.spawn the rank comes first; a function that takes one argument less is called
    as `fn(*args)`, and learns its rank from `rollcall.init()`. The function may be defined anywhere, also in
    `__main__` or a notebook cell. If ranks fail, the exception of the first one is raised here, with its
    traceback as a note. The first call starts a server that imports torch; later calls take milliseconds.
    """
    results = _server.call(bound(fn, tuple(args)), nprocs, timeout_s=timeout_s, env=env)
    raise_first(results, timeout_s)
    return [result.value for result in results]


def bound(fn: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[int], Any]:
    """A function of the rank alone, with all other arguments bound."""
    if _takes(fn, (0, *args)):
        return lambda rank: fn(rank, *args)
    return lambda _rank: fn(*args)


def _takes(fn: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    try:
        inspect.signature(fn).bind(*args)
    except TypeError:
        return False
    except ValueError:  # built in, without a signature
        return True
    return True


def raise_first(results: list[FunctionResult], timeout_s: float | None) -> None:
    first = first_of([result for result in results if result.failed])
    if first is not None and first.error is not None:
        if first.traceback:
            first.error.add_note(f"\nOn rank {first.rank} of {len(results)}:\n{first.traceback}")
        raise first.error
    hung = [result for result in results if result.exit_code is None]
    if hung:
        error = RankError(f"{len(hung)} of {len(results)} ranks were still running after {timeout_s} s and were ended")
        error.add_note(f"\nTheir stacks:\n{stacks(hung)}")
        raise error


def stacks(hung: list[FunctionResult]) -> str:
    """Where each rank was when it was ended."""
    return "\n\n".join(f"rank {r.rank}:\n{r.stacks or '(no stack: it did not answer)'}" for r in hung)
