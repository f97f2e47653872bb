"""Names that a program gives to its parts: `with rollcall.phase("forward"):`. Ops are recorded with their phase."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Give what happens inside a name, in explain, in the timeline and in exports. Does nothing without recording.

    with rollcall.phase("evaluate"):
        ...
    """
    patching = sys.modules.get("rollcall.record.hooks.patching")  # not imported here: it imports torch
    if patching is None:
        yield
        return
    sink = patching.sink.current
    mark = patching.guarded("phase", sink.begin_phase, str(name))
    try:
        yield
    finally:
        patching.guarded("phase", sink.end_phase, mark)
