"""A process that has imported torch once and forks a rank in milliseconds.

It is forked off an agent that has already imported everything, so torch is loaded once per host. It
does nothing but fork when told to and report how its children end. The standard library's fork server
is not used: it goes through multiprocessing, which leaves marks on a rank (its main process, start
method, resource tracker, stdin) that `python script.py` does not have.
"""

import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from rollcall.launch import supervise

# What a child of the server turns into. It gets the request and its extra file descriptors.
Become = Callable[[dict[str, Any], list[int]], NoReturn]

_LENGTH_BYTES = 8
_MOST_FDS = 16


@dataclass(frozen=True)
class Exit:
    """A child's end; a negative code is the signal that killed it."""

    pid: int
    code: int
    ended_ns: int


class ForkServer:
    """The handle that the parent process holds: the server's pid, and the connection to it."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self._socket = connection
        self._started: list[int] = []
        self._ended: list[Exit] = []
        self._buffer = b""

    @classmethod
    def fork(cls, become: Become, close_fds: tuple[int, ...] = ()) -> "ForkServer":
        """Make this process's image the one that children start from."""
        here, there = socket.socketpair()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            supervise.die_with_parent(parent)
            here.close()
            for fd in close_fds:
                os.close(fd)
            serve(there, become)
        there.close()
        return cls(pid, here)

    @classmethod
    def launch(cls, words: list[str], env: dict[str, str] | None = None) -> "ForkServer":
        """Start a command that will serve on the socket whose number is added to it as the last word."""
        here, there = socket.socketpair()
        with there:
            process = subprocess.Popen(
                [*words, str(there.fileno())],
                pass_fds=(there.fileno(),),
                env=env,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        # The handle is ours from here on: Popen would warn that nobody has waited for it.
        process.returncode = 0
        return cls(process.pid, here)

    def start(self, request: dict[str, Any], std: tuple[int, int, int], extra: tuple[int, ...] = ()) -> int:
        """Fork a child that becomes what the request says, with these as its stdin, stdout, stderr."""
        body = json.dumps(request).encode()
        socket.send_fds(self._socket, [len(body).to_bytes(_LENGTH_BYTES, "big")], [*std, *extra])
        self._socket.sendall(body)
        while not self._started:
            self._read()
        return self._started.pop()

    def ends(self, timeout_s: float) -> list[Exit]:
        """The children that ended since the last look, after waiting for one at most so long.

        Raises EOFError if the server itself is gone.
        """
        if not self._ended and select.select([self._socket], [], [], timeout_s)[0]:
            self._read()
        ended, self._ended = self._ended, []
        return ended

    def close(self) -> None:
        """End the server; its children die with it."""
        self._socket.close()
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)

    def _read(self) -> None:
        try:
            data = self._socket.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if not data:
            raise EOFError("the fork server is gone")
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            reply = json.loads(line)
            if "started" in reply:
                self._started.append(reply["started"])
            else:
                self._ended.append(Exit(**reply))


def serve(control: socket.socket, become: Become) -> NoReturn:
    """The server's life. Leaves by _exit: this is a fork of somebody else's interpreter."""
    # Keep the collector of every child from touching, and so copying, the pages that exist now.
    gc.freeze()
    wake_r, wake_w = os.pipe()
    os.set_blocking(wake_w, False)
    os.set_blocking(wake_r, False)
    before = signal.signal(signal.SIGCHLD, lambda *_: None)
    wake_before = signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
    server = os.getpid()
    try:
        while True:
            readable, _, _ = select.select([control.fileno(), wake_r], [], [])
            if wake_r in readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake_r, 4096)
                for end in _reap():
                    _reply(control, end)
            if control.fileno() in readable:
                request, fds = _receive(control)
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(wake_before)
                    signal.signal(signal.SIGCHLD, before)
                    for fd in (control.detach(), wake_r, wake_w):
                        os.close(fd)
                    _turn_into(become, request, fds, server)
                for fd in fds:
                    os.close(fd)
                _reply(control, {"started": pid})
    except (EOFError, OSError):  # who holds the handle is gone, and nobody is left to answer to
        supervise.end_descendants(0)
        os._exit(0)


def _receive(control: socket.socket) -> tuple[dict[str, Any], list[int]]:
    head, fds, _, _ = socket.recv_fds(control, _LENGTH_BYTES, _MOST_FDS)
    while 0 < len(head) < _LENGTH_BYTES:
        head += control.recv(_LENGTH_BYTES - len(head))
    if not head:
        raise EOFError
    size, body = int.from_bytes(head, "big"), bytearray()
    while len(body) < size:
        body += control.recv(size - len(body))
    return json.loads(body), fds


def _turn_into(become: Become, request: dict[str, Any], fds: list[int], server: int) -> NoReturn:
    """Be a child: its own standard streams, and a session of its own as torchrun gives its ranks."""
    try:
        supervise.die_with_parent(server)
        os.setsid()
        for target, fd in enumerate(fds[:3]):
            os.dup2(fd, target)
            os.close(fd)
        become(request, fds[3:])
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _reap() -> list[dict[str, int]]:
    ends = []
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ends.append({"pid": pid, "code": os.waitstatus_to_exitcode(status), "ended_ns": time.time_ns()})
    return ends


def _reply(control: socket.socket, reply: dict[str, int]) -> None:
    control.sendall(json.dumps(reply).encode() + b"\n")
