"""Which of several failures came first, and which only follow from it."""

import re
from typing import Protocol, TypeVar

# Signals that the failure of another rank does not cause: a rank that got one is where it began, even if the output of
# others arrived a moment earlier.
_OWN_DEATHS = {-4, -7, -8, -9, -11}
_NEAR_NS = 1_000_000_000
# How gloo, NCCL and the store put it when another rank is gone.
_ECHO = re.compile(r"onnection (?:was )?(?:closed|reset) by|emote peer|ncclRemoteError|recvValue failed|Broken pipe")


def is_echo(error: str) -> bool:
    """Whether an error only says that another rank is gone."""
    return bool(_ECHO.search(error))


class Failed(Protocol):
    """Anything that failed at a time, with an exit code."""

    @property
    def exit_code(self) -> int | None: ...

    @property
    def failed_ns(self) -> int: ...

    @property
    def is_echo(self) -> bool: ...


F = TypeVar("F", bound=Failed)


def first_of(failures: list[F]) -> F | None:
    """Where it began: the earliest; but a rank that was killed goes before one whose error arrived a moment earlier."""
    if not failures:
        return None
    first = min(failures, key=lambda f: f.failed_ns)
    near = [f for f in failures if f.failed_ns - first.failed_ns < _NEAR_NS]
    return min(near, key=lambda f: (f.exit_code not in _OWN_DEATHS, f.is_echo, f.failed_ns))
