"""How many ranks `--nproc-per-node auto|gpu|cpu` means on this host."""

import os
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
    import subprocess  # here: agents import this module before torch, and do not need it

    ask = "import torch; print(torch.accelerator.device_count() if torch.accelerator.is_available() else 0)"
    answer = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=False)
    return int(answer.stdout.strip() or 0)


def visible_gpus() -> int:
    """How many GPUs this process may use, as the system shows it, without asking torch."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.split(",") if name.strip() not in ("", "-1")])
    amd = Path("/sys/class/kfd/kfd/topology/nodes").glob("*/gpu_id")
    return len(list(Path("/dev").glob("nvidia[0-9]*"))) or sum(path.read_text().strip() != "0" for path in amd)
