"""What a host says of itself at the roll call. Quick: nothing is imported that need not be."""

import importlib.util
import os
import platform
import socket
from pathlib import Path

from rollcall import __version__
from rollcall.protocol.messages import Present


def present() -> Present:
    return Present(
        host=socket.gethostname(),
        python=platform.python_version(),
        torch=_torch_version(),
        rollcall=__version__,
        cpus=len(os.sched_getaffinity(0)),
        gpus=gpu_nodes(),
    )


def gpu_nodes() -> int:
    """How many GPUs this process may use, by what the system shows; torch is not asked."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.split(",") if name.strip() not in ("", "-1")])
    amd = Path("/sys/class/kfd/kfd/topology/nodes").glob("*/gpu_id")
    return len(list(Path("/dev").glob("nvidia[0-9]*"))) or sum(path.read_text().strip() != "0" for path in amd)


def _torch_version() -> str:
    """Read from its file: importing torch takes a second."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return ""
    for line in Path(spec.submodule_search_locations[0], "version.py").read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and name.partition(":")[0].strip() == "__version__":
            return value.strip().strip("'\"")
    return ""
