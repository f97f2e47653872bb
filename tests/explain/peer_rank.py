"""peer_rank.py SCRIPT: runs a program of the corpus as a rank of torchrun, with what its peers need to see anything.

A group's default timeout is half an hour: it is cut to seconds, so that DETAIL comes to say who is late. Torch's flight
recorder, where it is switched on, is written out when the rank ends, in whatever way; and the names of gloo's groups,
which torch leaves out of it, are filled in: torchfrtrace ends in a KeyError without them. It is not written while the
program goes on: a thread that asks for it holds the GIL, and torch may wait for that while it records an op.
"""

import contextlib
import ctypes
import os
import pickle
import runpy
import signal
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

GROUP_TIMEOUT_S = 5


def dump(folder: Path) -> None:
    trace = pickle.loads(torch._C._distributed_c10d._dump_fr_trace())
    trace["pg_config"] = {
        distributed_c10d._world.pg_names[group]: {
            "name": distributed_c10d._world.pg_names[group],
            "desc": group.group_desc,
            "ranks": str(sorted(ranks)),
        }
        for group, ranks in list(distributed_c10d._world.pg_group_ranks.items())
        if group in distributed_c10d._world.pg_names  # not those that this rank is not in
    }
    if not trace["pg_config"]:  # before the first group, or after the last
        return
    fresh = folder / f".new-{os.environ['RANK']}"
    fresh.write_bytes(pickle.dumps(trace))
    fresh.replace(folder / f"rank_{os.environ['RANK']}")


def dump_when_asked_to_end(folder: Path) -> None:
    """The main thread sits in an op then. Threads that are started later have the signal blocked, too."""
    asked_by = [signal.SIGTERM, signal.SIGINT]
    signal.pthread_sigmask(signal.SIG_BLOCK, asked_by)

    def wait() -> None:
        number = signal.sigwait(asked_by)
        dump(folder)
        os._exit(128 + number)

    threading.Thread(target=wait, daemon=True).start()


def dump_before_the_last_group_goes(folder: Path) -> None:
    """Afterwards the names of groups are gone."""
    destroy = distributed_c10d.destroy_process_group

    def dump_and_destroy(*args: Any, **kwargs: Any) -> None:
        dump(folder)
        destroy(*args, **kwargs)

    dist.destroy_process_group = distributed_c10d.destroy_process_group = dump_and_destroy


def dump_before_abort(folder: Path) -> None:
    """gloo aborts in C++, in a thread of its own: the op in which that happens would be in no dump."""

    @ctypes.CFUNCTYPE(None)
    def dump_and_abort() -> None:
        with contextlib.suppress(Exception):
            dump(folder)
        os.abort()

    _kept.append(dump_and_abort)
    # std::set_terminate
    ctypes.CDLL("libstdc++.so.6")._ZSt13set_terminatePFvvE(dump_and_abort)


_kept: list[Any] = []  # C++ holds no reference to it


def main(script: str) -> None:
    distributed_c10d.default_pg_timeout = timedelta(seconds=GROUP_TIMEOUT_S)
    folder = os.environ.get("PEER_DUMPS")
    if folder:
        dump_when_asked_to_end(Path(folder))
        dump_before_the_last_group_goes(Path(folder))
        dump_before_abort(Path(folder))
    sys.argv = [script]
    sys.path[0] = str(Path(script).parent)
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        if folder:
            dump(Path(folder))


if __name__ == "__main__":
    main(sys.argv[1])
