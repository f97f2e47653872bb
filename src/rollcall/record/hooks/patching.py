"""Putting something in the place of a function, so that what is seen from outside stays as it was."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from rollcall.record.hooks.sink import WORLD, Seen, Told
from rollcall.record.ring_format import OP


def replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Put `make(original)` in its place; not every torch has all."""
    original = getattr(owner, name, None)
    if original is not None:
        setattr(owner, name, functools.wraps(original)(make(original)))


@contextlib.contextmanager
def during(op: str, seen: Seen, group: Any = WORLD) -> Iterator[None]:
    """Something that ranks do together, from its beginning to its end."""
    mark = Told.listener.enter(OP[op], group, seen)
    try:
        yield
    except BaseException:
        Told.listener.failed(mark)
        raise
    Told.listener.completed(mark)
