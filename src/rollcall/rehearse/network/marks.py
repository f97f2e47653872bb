"""Notes how many ops a rank had recorded at the end of each optimizer step: the ops between two notes are one step."""

import os
from pathlib import Path
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from rollcall.record import ring_format

_MOST = 64  # steps: the last ones are like these


def note_steps(ring: Path, marks: list[int]) -> None:
    """Adds to `marks` while the program runs."""
    file = os.open(ring, os.O_RDONLY)

    def note(*_: Any) -> None:
        if len(marks) < _MOST:
            marks.append(ring_format.NUMBER.unpack(os.pread(file, ring_format.NUMBER.size, ring_format.COUNT_AT))[0])

    register_optimizer_step_post_hook(note)
