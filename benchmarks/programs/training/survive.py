"""Used by both programs of the recovery section: a small training, and when each step was done."""

import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

BUSY_STEP = 30  # of attempt 0: from here on a rank may be killed
LAST_STEP = 20  # of a later attempt
MOST_S = 60.0

_attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
_folder = Path(os.environ["ROLLCALL_BENCH"], f"attempt-{_attempt}")
_folder.mkdir(exist_ok=True)
_began = time.monotonic()
_steps = 0


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def make_data() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.rand(4096, 64, generator=generator), torch.randint(0, 10, (4096,), generator=generator))


def note_step(rank: int) -> None:
    """Note a step. Attempt 0 reports when it may be killed; a later one when it works again, and then ends."""
    global _steps
    _steps += 1
    if _steps == 1:
        (_folder / f"first-{rank}").write_text(str(time.time_ns()))
    if _attempt == 0 and _steps == BUSY_STEP:
        (_folder / f"busy-{rank}").write_text(str(os.getpid()))
    if _attempt > 0 and _steps == LAST_STEP:
        (_folder / f"finished-{rank}").write_text("yes")
        sys.stdout.flush()
        os._exit(0)  # the training itself would go on
    if time.monotonic() - _began > MOST_S:
        sys.exit(f"no rank was killed within {MOST_S:g} s")
