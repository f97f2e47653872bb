"""Which modules the agent imports once, so that not each rank has to import them."""

import os
import re
from pathlib import Path

from rollcall.protocol.plan import Program

# Torch imports these at the first use of a feature, which takes 0.7 s in every rank.
_LATE = {
    r"\b(DistributedDataParallel|DDP|torch\.compile|fully_shard|FSDP)\b": ("torch._dynamo",),
    r"\brollcall\b.*\b(Trainer|Snapshot|wrap)\b": ("torch._dynamo", "rollcall.train.trainer"),
}


def of_torch(program: Program, cwd: str) -> tuple[str, ...]:
    """What the text of the program says that it will need beyond `import torch`."""
    return _named_in(_source(program, cwd))


def _source(program: Program, cwd: str) -> str:
    if program.kind != "script":
        return ""
    path = Path(cwd, program.target)
    return path.read_text(errors="replace") if os.path.isfile(path) else ""


def _named_in(text: str) -> tuple[str, ...]:
    return tuple(module for pattern, late in _LATE.items() if re.search(pattern, text) for module in late)
