"""Reading the ops of a ring, for tests."""

from pathlib import Path

from rollcall.explain.loading import rings
from rollcall.record.ring_format import OPS

_QUIET = ("sample", "phase", "new_group")


def ops_of(path: Path) -> list[str]:
    """The names of its records, but for what a sampler or torch itself adds."""
    ring = rings.read(path)
    names = [OPS[int(op)] for op in ring.records["op"]]
    return [name for name in names if name not in _QUIET]
