"""What a host says of itself in its first message. Imports little: the launcher waits for it."""

import contextlib
import importlib.util
import os
import platform
import socket
from pathlib import Path

from rollcall import __version__
from rollcall.protocol.devices import visible_gpus
from rollcall.protocol.messages import HostInfo


def host_info() -> HostInfo:
    return HostInfo(
        host=socket.gethostname(),
        python=platform.python_version(),
        torch=_torch_version(),
        rollcall=__version__,
        cpus=len(os.sched_getaffinity(0)),
        gpus=visible_gpus(),
    )


def _torch_version() -> str:
    """Read from its file: importing torch takes a second."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return ""
    with contextlib.suppress(OSError):  # a torch without its version: importing it will say what is wrong
        for line in Path(spec.submodule_search_locations[0], "version.py").read_text().splitlines():
            name, equals, value = line.partition("=")
            if equals and name.partition(":")[0].strip() == "__version__":
                return value.strip().strip("'\"")
    return "unknown"
