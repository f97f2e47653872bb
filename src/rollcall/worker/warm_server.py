"""A process that has imported modules, and forks a child for each request.

It listens on a socket that only this user can open. It ends some time after its last request, or when a file that it
has loaded has changed.
"""

import contextlib
import importlib
import json
import logging
import os
import select
import socket
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NoReturn

from rollcall.errors import RollcallError, UsageError
from rollcall.linux import fd_messages, private_folder, process_state
from rollcall.worker import installation
from rollcall.worker.fork_safety import why_no_process_forks

_ASK_S = 5.0  # for a client that has connected to send its request
_READY = b"ready\n"


def main(make: Callable[[dict[str, Any]], "WarmServer"]) -> NoReturn:
    """Reads from stdin what the server is for. Writes to stdout that it is ready, or why not. stderr is a file in
    memory."""
    with open(0, "rb", closefd=False) as file:
        wanted = json.loads(file.read())
    try:
        server = make(wanted)
    except RollcallError as error:
        _tell(f"{error}\n".encode())
        os._exit(error.exit_code)
    _tell(_READY)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)
    os.chdir("/")
    server.serve()


def _tell(text: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):  # a run that leaves a server behind does not wait for it
        os.write(1, text)


def _restart_clock_of_logging() -> None:
    """Log records count the time since logging was imported, which in a cold start is now."""
    started: Any = logging._startTime  # type: ignore[attr-defined]
    logging._startTime = time.time_ns() if isinstance(started, int) else time.time()  # type: ignore[attr-defined]


class WarmServer(ABC):
    """`state` is what the process that asked for it hands down to its children (linux/process_state.py)."""

    kind: str  # the first part of its socket's name

    def __init__(self, state: dict[str, Any], idle_s: float) -> None:
        """When everything is imported."""
        if reason := why_no_process_forks():
            raise UsageError(f"{reason}: a process that did cannot be kept ready, because its forks would not work")
        self.state = state
        self._idle_s = idle_s
        self._stamps = installation.stamps()
        self.said = os.pread(2, 1 << 20, 0)  # what the imports have printed: a cold start prints it each time
        self._began_s = self._used_s = time.monotonic()
        self._count = 0
        self._children: dict[int, int] = {}  # their pids, by pidfd
        self._folder_fd, self._name, self._listener = self._listen()

    @abstractmethod
    def difference(self, message: dict[str, Any]) -> str:
        """Between what the server is and what is wanted, beyond the state of processes, in words; empty if none."""

    @abstractmethod
    def use(self, connection: socket.socket, message: dict[str, Any], fds: list[int]) -> NoReturn:
        """Runs in a child: become the process that was asked for."""

    @abstractmethod
    def imports(self) -> list[str]:
        """Modules beyond torch."""

    def serve(self) -> NoReturn:
        while True:
            idle_s = None if self._children else self._used_s + self._idle_s - time.monotonic()
            if idle_s is not None and idle_s <= 0:
                self._end()
            readable, _, _ = select.select([self._listener.fileno(), *self._children], [], [], idle_s)
            for pidfd in self._children.keys() & set(readable):
                os.waitpid(self._children.pop(pidfd), 0)
                os.close(pidfd)
                self._used_s = time.monotonic()
            if self._listener.fileno() in readable:
                connection, _ = self._listener.accept()
                with connection, contextlib.suppress(OSError, EOFError, ValueError, KeyError):  # it went away
                    connection.settimeout(_ASK_S)
                    self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        if fd_messages.peer_uid(connection) != os.geteuid():  # root may open any socket
            return
        message, fds = fd_messages.receive(connection)
        try:
            match message["ask"]:
                case "use":
                    self._answer_use(connection, message, fds)
                case "matches":
                    fd_messages.send(connection, {"differs": self._difference(message)}, [])
                case "status":
                    fd_messages.send(connection, self._status(), [])
                case "stop":
                    fd_messages.send(connection, self._status(), [])
                    self._end()
        finally:
            for fd in fds:
                os.close(fd)

    def _answer_use(self, connection: socket.socket, message: dict[str, Any], fds: list[int]) -> None:
        if path := installation.changed(self._stamps):
            fd_messages.send(connection, {"differs": f"{path}, which has changed since: the server has ended"}, [])
            self._end()
        if differs := self._difference(message):
            fd_messages.send(connection, {"differs": differs}, [])
            return
        pid = os.fork()
        if pid == 0:
            self._listener.close()
            for fd in (self._folder_fd, *self._children):
                os.close(fd)
            importlib.invalidate_caches()  # folders may have changed since the server started
            _restart_clock_of_logging()
            try:
                self.use(connection, message, fds)
            except BaseException:
                traceback.print_exc()
            finally:  # the child must not become a second server
                os._exit(1)
        self._children[os.pidfd_open(pid)] = pid
        self._count += 1
        self._used_s = time.monotonic()

    def _difference(self, message: dict[str, Any]) -> str:
        return process_state.difference(self.state, message["state"]) or self.difference(message)

    def _status(self) -> dict[str, Any]:
        now_s = time.monotonic()
        return {
            "pid": os.getpid(),
            "python": sys.executable,
            "preload": self.imports(),
            "age_s": now_s - self._began_s,
            "starts": self._count,
            "running": len(self._children),
            "left_s": None if self._children else self._used_s + self._idle_s - now_s,
            "changed": installation.changed(self._stamps),
        }

    def _end(self) -> NoReturn:
        """Its children continue without the server."""
        with contextlib.suppress(OSError):
            os.unlink(self._name, dir_fd=self._folder_fd)
        os._exit(0)

    def _listen(self) -> tuple[int, str, socket.socket]:
        path = private_folder.path(os.environ)
        folder_fd = private_folder.opened(path, make=True)
        if folder_fd is None:
            raise UsageError(private_folder.needed(path))
        name = f"{self.kind}{os.getpid()}"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(private_folder.socket_path(folder_fd, name))
        listener.listen(16)
        return folder_fd, name, listener
