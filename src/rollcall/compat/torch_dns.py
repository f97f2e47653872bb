"""Names that torch looks up for its log lines only, and how not to wait for them.

torch asks for the name of every peer it connects to. `::ffff:127.0.0.1` has none: where DNS is silent each
rank waits ten seconds to learn that, and where DNS is small, many ranks asking at once lose some of their
questions. So we ask once whether names are answered at all (`impatient_env`); and since torch stops asking
after the first failure, we let it fail once, before ranks are forked (`have_torch_give_up`).
"""

import contextlib
import ctypes
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Iterator, Mapping

_PATIENCE_S = 0.05
_IMPATIENT = "attempts:1 timeout:1"  # the least that the C library knows
_LOOPBACK = "127.0.0.1"
# In glibc's struct __res_state, as resolv.h has had it since 1996.
_NSCOUNT, _NSADDR, _NSADDR_BYTES = 16, 20, 16


def impatient_env(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What to add to the environment of processes that will look up names: nothing where DNS answers."""
    if "RES_OPTIONS" in environ or _names_answer():
        return {}
    return {"RES_OPTIONS": _IMPATIENT}


def are_slow(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether `impatient_env` found so."""
    return environ.get("RES_OPTIONS") == _IMPATIENT


def have_torch_give_up() -> None:
    """Make torch's first look-up in this process fail at once: it will not try again, nor will forks of it."""
    from torch.distributed import TCPStore

    with socket.create_server((_LOOPBACK, 0)) as listener, _nobody_to_ask(), _silence():
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


def _names_answer() -> bool:
    """Asked in a process of its own: a thread could be caught by a fork while it holds the resolver's lock."""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            socket.getnameinfo(("::ffff:127.0.0.1", 1, 0, 0), 0)  # no name is an answer, too
            os._exit(0)
        os._exit(1)
    watched = os.pidfd_open(child)
    answered = bool(select.select([watched], [], [], _PATIENCE_S)[0])
    os.close(watched)
    if not answered:
        os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1] == 0


@contextlib.contextmanager
def _nobody_to_ask() -> Iterator[None]:
    """While inside, this thread's questions go to a port where nobody listens, and so fail at once."""
    libc = ctypes.CDLL(None)
    try:
        state, init = libc.__res_state, libc.__res_init
    except AttributeError:  # another C library: its look-ups take the time they take
        yield
        return
    state.restype = ctypes.c_void_p
    init()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as nobody:
        nobody.bind((_LOOPBACK, 0))
        port = nobody.getsockname()[1]
    address = struct.pack("=HH4s8x", socket.AF_INET, socket.htons(port), socket.inet_aton(_LOOPBACK))
    ctypes.memmove(state() + _NSADDR, address, _NSADDR_BYTES)
    ctypes.c_int.from_address(state() + _NSCOUNT).value = 1
    try:
        yield
    finally:
        init()  # from /etc/resolv.conf again


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """While inside, nothing reaches stderr: torch warns of the name that it does not get."""
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
