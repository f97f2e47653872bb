"""Destroys a gloo process group without a deadlock.

A gloo op that a backward started keeps a Python object (the backward's context). The thread that drops the op last,
mostly one of gloo's own just after the op completes, needs the GIL for it. If the group is destroyed then, its
destructor holds the GIL and waits for that thread: a deadlock. A program that ends right after its last step runs into
it, one time in three where all modules are imported already. So gloo's threads get the time to finish first.

The same thread aborts the process ("terminate called without an active exception") if it needs the GIL while the
interpreter ends, in a program that does not destroy its group. So a fresh interpreter settles at its end, too.
"""

import contextlib
import functools
import os
import time
from typing import Any

from rollcall.compat.patch import Patch

PATCH = Patch(
    name="gloo_exit",
    purpose="destroys a gloo group without a deadlock",
    lost_without="a program that ends right after its last op may hang or abort",
    uses=("torch.distributed.distributed_c10d:destroy_process_group",),
    can_be_left_out=True,
    works=lambda: "" if os.path.isdir("/proc/self/task") else "there is no /proc",
)
_THREAD = "(pt_gloo_"  # the name of gloo's threads in /proc
_INTERVAL_S = 0.0005
_CHECKS = 2
_LIMIT_S = 1.0


def install() -> None:
    """In this process and those forked from it, `destroy_process_group` calls `settle` first."""
    if PATCH.is_off() or PATCH.check():
        return
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
    """Wait, without the GIL, until each of gloo's threads sleeps: it waits for work or for another rank. Whatever fails
    here does not keep the program from ending."""
    if not PATCH.is_off():
        with contextlib.suppress(Exception):
            _wait_until_quiet()


def _wait_until_quiet() -> None:
    deadline = time.monotonic() + _LIMIT_S
    quiet = 0
    while quiet < _CHECKS and time.monotonic() < deadline:
        time.sleep(_INTERVAL_S)
        quiet = quiet + 1 if all(state == "S" for state in _thread_states()) else 0


def _thread_states() -> list[str]:
    """The state of each of gloo's threads, as a letter of the kernel; none where there is no /proc."""
    states = []
    try:
        for thread in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{thread}/stat") as file:
                _, is_gloo, rest = file.read().partition(_THREAD)
            if is_gloo:
                states.append(rest.partition(") ")[2][0])
    except OSError:  # a thread that has just ended
        return ["R"] if os.path.isdir("/proc/self/task") else []
    return states
