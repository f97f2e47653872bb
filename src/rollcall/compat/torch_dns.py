"""Keeps torch from waiting for host names, which it looks up for its log lines only.

torch looks up the name of every peer that it connects to. `::ffff:127.0.0.1` has none: where the name server does not
answer, each rank waits ten seconds for that, and a small name server drops some requests of many ranks. So we test once
whether look-ups are answered (`impatient_env`); and since torch stops looking up names after the first failure, we make
its first look-up fail, before ranks are forked (`have_torch_give_up`).
"""

import contextlib
import ctypes
import os
import select
import signal
import socket
import struct
import sys
import warnings
from collections.abc import Iterator, Mapping

from rollcall.compat.patch import Patch

PATCH = Patch(
    name="torch_dns",
    purpose="keeps torch from waiting for host names, which it looks up for log lines only",
    lost_without="where the name server does not answer, each rank starts ten seconds later",
    can_be_left_out=True,
    works=lambda: "" if hasattr(ctypes.CDLL(None), "__res_state") else "the C library is not glibc",
)
_TEST_S = 0.05
_IMPATIENT = "attempts:1 timeout:1"  # the minimum of the C library
_LOOPBACK = "127.0.0.1"
# Offsets in glibc's struct __res_state, the same in resolv.h since 1996.
_NSCOUNT, _NSADDR, _NSADDR_BYTES = 16, 20, 16


def impatient_env(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What to add to the environment of processes that look up names: nothing where the name server answers."""
    if PATCH.is_off(environ) or "RES_OPTIONS" in environ or _is_answered():
        return {}
    return {"RES_OPTIONS": _IMPATIENT}


def are_slow(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether `impatient_env` found so."""
    return environ.get("RES_OPTIONS") == _IMPATIENT


def have_torch_give_up() -> None:
    """Make torch's first look-up in this process fail at once: it will not try again, nor will forks of it."""
    if PATCH.is_off():
        return
    from torch.distributed import TCPStore

    with socket.create_server((_LOOPBACK, 0)) as listener, _without_name_server(), _without_stderr():
        port = listener.getsockname()[1]
        # A server in a process of its own: it starts threads, and we are about to be forked.
        child = os.fork()
        if child == 0:
            server = TCPStore(
                _LOOPBACK, port, is_master=True, wait_for_workers=False, master_listen_fd=os.dup(listener.fileno())
            )
            while server:
                signal.pause()
        TCPStore(_LOOPBACK, port, is_master=False, wait_for_workers=False)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _is_answered() -> bool:
    """Whether a look-up is answered in time. In a process of its own: a fork while a thread holds the resolver's lock
    would leave it locked in the child."""
    with warnings.catch_warnings():
        # From 3.12 on, Python warns of a fork beside threads. This child takes no lock but the resolver's, and is ended
        # if it waits for that.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            socket.getnameinfo(("::ffff:127.0.0.1", 1, 0, 0), 0)  # "no name" is an answer, too
            os._exit(0)
        os._exit(1)
    watched = os.pidfd_open(child)
    answered = bool(select.select([watched], [], [], _TEST_S)[0])
    os.close(watched)
    if not answered:
        os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1] == 0


@contextlib.contextmanager
def _without_name_server() -> Iterator[None]:
    """While inside, look-ups of this thread go to a port where no server listens, and so fail at once."""
    libc = ctypes.CDLL(None)
    try:
        state, init = libc.__res_state, libc.__res_init
    except AttributeError:  # another C library: look-ups are as slow as they are
        yield
        return
    state.restype = ctypes.c_void_p
    init()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as closed:
        closed.bind((_LOOPBACK, 0))
        port = closed.getsockname()[1]
    address = struct.pack("=HH4s8x", socket.AF_INET, socket.htons(port), socket.inet_aton(_LOOPBACK))
    ctypes.memmove(state() + _NSADDR, address, _NSADDR_BYTES)
    ctypes.c_int.from_address(state() + _NSCOUNT).value = 1
    try:
        yield
    finally:
        init()  # from /etc/resolv.conf again


@contextlib.contextmanager
def _without_stderr() -> Iterator[None]:
    """While inside, nothing reaches stderr: torch warns about the failed look-up."""
    sys.stderr.flush()
    kept = os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
