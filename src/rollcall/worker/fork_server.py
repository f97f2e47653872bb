"""Forks a rank in milliseconds, from a process that has imported torch once.

The server is forked from an agent that has already imported everything, so torch is loaded once per host. It only forks
children and reports how they end. A child waits for a request that says what to run, so children can be forked in
advance. The standard library's fork server is not used: it uses multiprocessing, which changes things in a rank that
`python script.py` does not change (main process, start method, resource tracker, stdin).
"""

import contextlib
import gc
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from rollcall.compat import gloo_exit, gloo_listener
from rollcall.linux import fd_messages, prctl

# What a child of the server does with its request and its extra file descriptors.
RunRequest = Callable[[dict[str, Any], list[int]], NoReturn]
# What a server does before its first child, with what is known only then; returns a sentence, or nothing.
Settle = Callable[[dict[str, Any]], str]


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
        self._settled: list[str] = []
        self._ended: list[Exit] = []
        self._buffer = b""

    @classmethod
    def fork(
        cls, run_request: RunRequest, close_fds: tuple[int, ...] = (), settle: Settle | None = None
    ) -> "ForkServer":
        """Children start from a copy of this process."""
        here, there = socket.socketpair()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            prctl.die_with_parent(parent)
            here.close()
            for fd in close_fds:
                os.close(fd)
            serve(there, run_request, settle)
        there.close()
        return cls(pid, here)

    @classmethod
    def launch(cls, command: list[str], env: dict[str, str] | None = None) -> "ForkServer":
        """Start a command that will serve on the socket whose number is added to it as the last word."""
        here, there = socket.socketpair()
        with there:
            process = subprocess.Popen(
                [*command, str(there.fileno())],
                pass_fds=(there.fileno(),),
                env=env,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        # The handle is ours from here on: Popen would warn that nobody has waited for it.
        process.returncode = 0
        return cls(process.pid, here)

    def settle(self, request: dict[str, Any]) -> str:
        """Have the server's `settle` called."""
        fd_messages.send(self._socket, {"settle": request}, [])
        while not self._settled:
            self._read()
        return self._settled.pop()

    def prepare(self, children: int) -> None:
        """Have this number of children forked in advance."""
        fd_messages.send(self._socket, {"prepare": children}, [])

    def start(self, request: dict[str, Any], std: tuple[int, int, int], extra: tuple[int, ...] = ()) -> int:
        """Have a child run the request, with these as its stdin, stdout, stderr."""
        fd_messages.send(self._socket, request, [*std, *extra])
        while not self._started:
            self._read()
        return self._started.pop()

    def ends(self, timeout_s: float) -> list[Exit]:
        """The children that ended since the last call. Waits for one of them, at most this long.

        Raises EOFError if the server itself is gone.
        """
        if not self._ended and select.select([self._socket], [], [], timeout_s)[0]:
            self._read()
        ended, self._ended = self._ended, []
        return ended

    @property
    def has_ends(self) -> bool:
        """Whether `ends` would return something without waiting."""
        return bool(self._ended)

    def fileno(self) -> int:
        return self._socket.fileno()

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
            elif "settled" in reply:
                self._settled.append(reply["settled"])
            else:
                self._ended.append(Exit(**reply))


class ForkServers:
    """Several servers that fork at the same time: a fork of a process with torch takes 5 ms."""

    def __init__(self, servers: list[ForkServer]) -> None:
        self._servers = servers
        self._turn = itertools.cycle(servers)

    @classmethod
    def fork(
        cls, count: int, run_request: RunRequest, close_fds: tuple[int, ...] = (), settle: Settle | None = None
    ) -> "ForkServers":
        servers: list[ForkServer] = []
        for _ in range(count):
            others = (server.fileno() for server in servers)
            servers.append(ForkServer.fork(run_request, (*close_fds, *others), settle))
        return cls(servers)

    def settle(self, count: int, request: dict[str, Any]) -> str:
        """Keep `count` of the servers, and have their `settle` called. Returns the answer of the first."""
        for server in self._servers[count:]:
            server.close()
        self._servers = self._servers[:count]
        self._turn = itertools.cycle(self._servers)
        said = [server.settle(request) for server in self._servers]
        return said[0]

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(server.pid for server in self._servers)

    def prepare(self, children: int) -> None:
        for number, server in enumerate(self._servers):
            server.prepare(len(range(number, children, len(self._servers))))

    def start(self, request: dict[str, Any], std: tuple[int, int, int]) -> int:
        return next(self._turn).start(request, std)

    def ends(self, timeout_s: float) -> list[Exit]:
        """The children of all servers that ended since the last look; EOFError if a server is gone."""
        select.select(self._servers, [], [], 0 if any(s.has_ends for s in self._servers) else timeout_s)
        return [end for server in self._servers for end in server.ends(0)]


def serve(control: socket.socket, run_request: RunRequest, settle: Settle | None = None) -> NoReturn:
    """Serve until the parent is gone. Leaves by _exit: this process is a fork of another interpreter."""
    if "torch.distributed" in sys.modules:
        gloo_exit.install()
        gloo_listener.install()
    # Keep the collector of every child from touching, and so copying, the pages that exist now; nor shall each child
    # empty the interpreter's free lists, which a collection does even where there is nothing to collect.
    gc.freeze()
    gc.collect()
    _skip_removal_of_ops()
    try:
        _Server(control, run_request, settle).run()
    except (EOFError, OSError):  # the parent is gone
        from rollcall.linux import process_tree  # here: it imports psutil, which ranks shall not have loaded

        process_tree.end_all(0)
    os._exit(0)


def _skip_removal_of_ops() -> None:
    """When a process ends, torch removes its ops one by one, in pages that each child would copy: 30 ms."""
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        if finalizer.peek()[1].__module__ == "torch.library":
            finalizer.atexit = False


class _Server:
    """Forks children, hands them their requests, and reports their ends."""

    def __init__(self, control: socket.socket, run_request: RunRequest, settle: Settle | None) -> None:
        self._control, self._run_request, self._settle = control, run_request, settle
        self._waiting: dict[int, socket.socket] = {}  # by pid: children that wait for a request
        self._wanted = 0
        self._pid = os.getpid()
        self._wake_r, self._wake_w = os.pipe()
        for fd in (self._wake_r, self._wake_w):
            os.set_blocking(fd, False)
        self._handler_before = signal.signal(signal.SIGCHLD, lambda *_: None)
        self._wakeup_before = signal.set_wakeup_fd(self._wake_w, warn_on_full_buffer=False)

    def run(self) -> NoReturn:
        while True:
            patience = 0 if len(self._waiting) < self._wanted else None
            readable, _, _ = select.select([self._control.fileno(), self._wake_r], [], [], patience)
            if self._wake_r in readable:
                self._report_ends()
            if self._control.fileno() in readable:
                self._serve_one()
            elif not readable:
                self._fork_child()

    def _report_ends(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_r, 4096)
        for end in _reap():
            if end["pid"] in self._waiting:
                self._waiting.pop(end["pid"]).close()
            else:
                self._reply(end)

    def _serve_one(self) -> None:
        request, fds = fd_messages.receive(self._control)
        if "prepare" in request:
            self._wanted = request["prepare"]
            return
        if "settle" in request:
            self._reply({"settled": self._settle(request["settle"]) if self._settle is not None else ""})
            return
        if not self._waiting:
            self._fork_child()
        pid = next(iter(self._waiting))
        self._wanted = max(0, self._wanted - 1)
        with self._waiting.pop(pid) as connection:
            fd_messages.send(connection, request, fds)
        for fd in fds:
            os.close(fd)
        self._reply({"started": pid})

    def _fork_child(self) -> None:
        here, there = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            here.close()
            self._run_child(there)
        there.close()
        self._waiting[pid] = here

    def _run_child(self, connection: socket.socket) -> NoReturn:
        """Undo what the server has set up, wait for the request, and run it."""
        try:
            prctl.die_with_parent(self._pid)
            signal.set_wakeup_fd(self._wakeup_before)
            signal.signal(signal.SIGCHLD, self._handler_before)
            for fd in (self._control.detach(), self._wake_r, self._wake_w):
                os.close(fd)
            for connection_of_other in self._waiting.values():
                connection_of_other.close()
            request, fds = fd_messages.receive(connection)
            connection.close()
            os.setsid()  # torchrun gives its ranks sessions of their own, too
            for target, fd in enumerate(fds[:3]):
                os.dup2(fd, target)
                os.close(fd)
            self._run_request(request, fds[3:])
        except EOFError:  # the server ended without a request for this child
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)

    def _reply(self, reply: Mapping[str, int | str]) -> None:
        self._control.sendall(json.dumps(reply).encode() + b"\n")


def _reap() -> list[dict[str, int]]:
    ends = []
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ends.append({"pid": pid, "code": os.waitstatus_to_exitcode(status), "ended_ns": time.time_ns()})
    return ends
