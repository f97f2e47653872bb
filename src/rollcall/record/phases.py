"""Names that a program gives to its parts: `with rollcall.phase("forward"):`. Ops know the phase they were made in."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Give what happens inside a name, in explain, in the timeline and in exports. Costs nothing where nobody records.

    with rollcall.phase("evaluate"):
        ...
    """
    recorder = sys.modules.get("rollcall.record.recorder")
    current = recorder.current() if recorder is not None else None
    if current is None:
        yield
        return
    mark = current.begin_phase(str(name))
    try:
        yield
    finally:
        current.end_phase(mark)
