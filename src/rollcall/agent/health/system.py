"""Disk, limits, load and InfiniBand links of this host."""

import os
import resource
import shutil
from pathlib import Path
from typing import Any

_INFINIBAND = Path("/sys/class/infiniband")
_SHARED_MEMORY = Path("/dev/shm")


def facts(folder: str) -> dict[str, Any]:
    """`folder`: where the run will be started."""
    return {
        "folder": _folder(Path(folder)),
        "disk_free_bytes": _free_bytes(Path(folder)),
        "shared_memory_free_bytes": _free_bytes(_SHARED_MEMORY),
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        "locked_memory_bytes": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        "load_per_core": os.getloadavg()[0] / (os.cpu_count() or 1),
        "infiniband": links(),
    }


def _folder(path: Path) -> str:
    """What it is to this host: writable, readable or missing."""
    if not path.is_dir():
        return "missing"
    return "writable" if os.access(path, os.W_OK) else "readable"


def _free_bytes(path: Path) -> int | None:
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


def links(root: Path = _INFINIBAND) -> list[dict[str, str]]:
    """Ports of InfiniBand and RoCE devices, as the kernel shows them."""
    return [
        {"port": f"{port.parent.parent.name}/{port.name}", "state": _word(port / "state"), "rate": _word(port / "rate")}
        for port in sorted(root.glob("*/ports/*"))
    ]


def _word(path: Path) -> str:
    """`ACTIVE` of "4: ACTIVE", `100 Gb/sec` of "100 Gb/sec (4X EDR)"."""
    try:
        text = path.read_text().strip()
    except OSError:
        return "unknown"
    return text.rpartition(": ")[2].partition(" (")[0]
