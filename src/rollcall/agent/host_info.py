"""What a host reports about itself in its first message. Imports little: the launcher waits for this message."""

import os
import platform
import socket

from rollcall import __version__
from rollcall.protocol.devices import visible_gpus
from rollcall.protocol.messages import HostInfo
from rollcall.torch_version import torch_version


def host_info() -> HostInfo:
    return HostInfo(
        host=socket.gethostname(),
        python=platform.python_version(),
        torch=torch_version(),
        rollcall=__version__,
        cpus=len(os.sched_getaffinity(0)),
        gpus=visible_gpus(),
    )
