"""Leaving a process group without hanging in torch.

An op of gloo that a backward started keeps a Python object (the backward's context), and whoever lets go of the op last
needs the GIL for it: mostly one of gloo's own threads, a moment after the op is over. If the group dies within that
moment, its destructor waits for that thread, and holds the GIL. A program that ends right after its last step does so,
and where everything is imported already it does so one time in three. So gloo's threads get their moment first.
"""

import functools
import os
import time
from typing import Any

_WORKER = "(pt_gloo_"  # as /proc names gloo's threads
_LOOK_S = 0.0005
_LOOKS = 2
_LIMIT_S = 1.0


def put_up() -> None:
    """In this process, and those forked off it, `destroy_process_group` settles first."""
    import torch.distributed as dist

    modules: tuple[Any, ...] = (dist, dist.distributed_c10d)
    settling = _settling(dist.distributed_c10d.destroy_process_group)
    for module in modules:
        module.destroy_process_group = settling


def _settling(original: Any) -> Any:
    @functools.wraps(original)
    def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
        settle()
        return original(*args, **kwargs)

    return destroy_process_group


def settle() -> None:
    """Without the GIL, until each of gloo's threads waits for something else: for work, or for another rank."""
    deadline = time.monotonic() + _LIMIT_S
    quiet = 0
    while quiet < _LOOKS and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
        quiet = quiet + 1 if all(state == "S" for state in _workers()) else 0


def _workers() -> list[str]:
    """What each of gloo's threads does, in the kernel's letters; none where the kernel does not tell."""
    states = []
    try:
        for thread in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{thread}/stat") as file:
                _, is_worker, rest = file.read().partition(_WORKER)
            if is_worker:
                states.append(rest.partition(") ")[2][0])
    except OSError:  # a thread that has just ended
        return ["R"] if os.path.isdir("/proc/self/task") else []
    return states
