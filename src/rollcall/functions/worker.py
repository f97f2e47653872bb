"""The fork server of pool.py: a child loads a pickled function, calls it, and writes the result.

Run as `python -m rollcall.functions MODULE,MODULE SOCKET`.
"""

import contextlib
import faulthandler
import gc
import importlib
import os
import pickle
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

import cloudpickle

from rollcall.compat import torch_dns
from rollcall.errors import RankError
from rollcall.linux import prctl
from rollcall.protocol.plan import LOOPBACK
from rollcall.worker.fork_server import serve
from rollcall.worker.main import forget_random_state
from rollcall.worker.traceback_filter import users_part

STACKS_SIGNAL = signal.SIGRTMIN + 7  # not known to be used by any library
MODULES = ("torch", "torch.distributed")  # imported before the first fork
_READ = 1 << 20


def become(request: dict[str, Any], fds: list[int]) -> NoReturn:
    """Become one rank of one call, or the process with the store of its ranks."""
    if "port" in request:
        _serve_store(request["port"], *fds)
    payload, result, stacks = fds
    resolver = {name: value for name, value in os.environ.items() if name == "RES_OPTIONS"}
    os.environ.clear()  # the caller's environment may have changed since the server started
    os.environ.update({**resolver, **request["env"]})
    os.chdir(request["cwd"])
    sys.path[:] = request["path"]
    gc.enable()
    faulthandler.register(STACKS_SIGNAL, file=stacks, all_threads=False)  # frames of other threads may change meanwhile
    forget_random_state()
    code, pickled = _call(request["rank"], payload)
    write_all(result, pickled)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _serve_store(port: int, listener: int) -> NoReturn:
    """Serve the store of the ranks until killed. No rank does it, since any of them may end first."""
    from torch.distributed import TCPStore  # here: the caller imports this module too, and needs no torch

    store = TCPStore(LOOPBACK, port, is_master=True, wait_for_workers=False, master_listen_fd=listener)
    while store:
        signal.pause()
    os._exit(0)


def _call(rank: int, payload: int) -> tuple[int, bytes]:
    """The exit code, and some fields of a FunctionResult, pickled."""
    try:
        value = pickle.loads(read_all(payload))(rank)
        return 0, cloudpickle.dumps({"value": value})
    except BaseException as error:
        error.__traceback__ = users_part(error.__traceback__)
        failed = {"traceback": "".join(traceback.format_exception(error)), "failed_ns": time.time_ns()}
        try:
            return 1, cloudpickle.dumps({**failed, "error": error})
        except Exception:
            plain = RankError(f"rank {rank} raised {type(error).__name__}: {error}")
            return 1, cloudpickle.dumps({**failed, "error": plain})


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def read_all(fd: int) -> bytes:
    """All bytes of a memory file, whose offset several processes share."""
    data, offset = bytearray(), 0
    while chunk := os.pread(fd, _READ, offset):
        data += chunk
        offset += len(chunk)
    return bytes(data)


def import_modules(names: Sequence[str]) -> None:
    """`module:function` also calls the function."""
    gc.disable()
    for name in names:
        module, _, function = name.partition(":")
        imported = importlib.import_module(module)
        if function:
            getattr(imported, function)()


def serve_calls(control_fd: int) -> NoReturn:
    """Fork ranks on request. Call it when everything is imported."""
    prctl.become_subreaper()
    serve(socket.socket(fileno=control_fd), become)


def main(preload: str, control_fd: str) -> NoReturn:
    import_modules(preload.split(","))
    torch_dns.have_torch_give_up()
    serve_calls(int(control_fd))
