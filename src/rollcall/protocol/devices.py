"""How many ranks `--nproc-per-node auto|gpu|cpu` means on this host."""

import os
import subprocess
import sys
from pathlib import Path

from rollcall.errors import UsageError

COUNTED = ("auto", "gpu", "cpu")
_WORDS = "a number, auto, gpu, or cpu"


def slots(word: str) -> int:
    """The number of ranks for one of torchrun's words, or for a number."""
    if word == "cpu":
        return cpu_count()
    if word == "gpu":
        if not (count := gpu_count()):
            raise UsageError("--nproc-per-node gpu, but torch sees no GPU here: use a number, or cpu")
        return count
    if word == "auto":
        return gpu_count() or cpu_count()
    try:
        return int(word)
    except ValueError:
        raise UsageError(f"--nproc-per-node {word} is not understood: use {_WORDS}") from None


def cpu_count() -> int:
    return len(os.sched_getaffinity(0))


def gpu_count() -> int:
    """Asks torch in a separate process, and only if this host has a device file of a GPU."""
    if not any(Path("/dev").glob("nvidia[0-9]*")) and not Path("/dev/kfd").exists():
        return 0
    ask = "import torch; print(torch.accelerator.device_count() if torch.accelerator.is_available() else 0)"
    answer = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=False)
    return int(answer.stdout.strip() or 0)
