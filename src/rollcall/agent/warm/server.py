"""Keeps torch imported until a run needs it. Started by `rollcall warm`, or by a run that leaves one behind.

It gives a run its agent only if a cold start would give the same: what launcher and server would hand down to a child
is the same (linux/process_state.py), the run imports the same modules in advance, and no file that is loaded has
changed. Else it says what differs, and the run starts without it. A server whose files have changed ends.
"""

import contextlib
import json
import os
import select
import socket
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from rollcall.agent import main as agent_main
from rollcall.agent.fast_import import begin as fast_import
from rollcall.agent.fast_import import preload
from rollcall.agent.warm import installation, run
from rollcall.errors import RollcallError, UsageError
from rollcall.linux import fd_messages, private_folder, process_state, process_title
from rollcall.protocol.plan import Program
from rollcall.worker.fork_safety import folder_of, why_no_process_forks

_ASK_S = 5.0  # for whoever connects to say what it wants
_READY = b"ready\n"


def main() -> NoReturn:
    """What to be comes on stdin; stdout says that it is so, or why not. stderr is a memory file."""
    with open(0, "rb", closefd=False) as file:
        wanted = json.loads(file.read())
    try:
        server = WarmServer(wanted)
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


class WarmServer:
    def __init__(self, wanted: dict[str, Any]) -> None:
        self._state: dict[str, Any] = wanted["state"]
        self._typed: dict[str, Any] = wanted["typed"]
        self._idle_s: float = wanted["idle_s"]
        self._late = _late(self._typed, self._state["cwd"])
        self._chose_threads = fast_import.choose_threads()
        self._import()
        self._stamps = installation.stamps()
        self._said = os.pread(2, 1 << 20, 0)  # what the imports have printed: a cold start prints it each time
        self._title_bytes = process_title.room()
        self._began_s = self._used_s = time.monotonic()
        self._count = 0
        self._runs: dict[int, int] = {}  # the pids of their supervisors, by pidfd
        self._folder_fd, self._name, self._listener = _listen()

    def _import(self) -> None:
        fast_import.import_torch()
        typed = self._typed
        agent_main.import_once(self._late, typed["record"], typed["preload"], self._program_folder(typed, self._state))
        if reason := why_no_process_forks():
            raise UsageError(f"{reason}: a process that did cannot be kept ready, because its forks would not work")

    def serve(self) -> NoReturn:
        while True:
            idle_s = None if self._runs else self._used_s + self._idle_s - time.monotonic()
            if idle_s is not None and idle_s <= 0:
                self._end()
            readable, _, _ = select.select([self._listener.fileno(), *self._runs], [], [], idle_s)
            for pidfd in self._runs.keys() & set(readable):
                os.waitpid(self._runs.pop(pidfd), 0)
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
                case "run":
                    self._answer_run(connection, message, fds)
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

    def _answer_run(self, connection: socket.socket, message: dict[str, Any], fds: list[int]) -> None:
        if path := installation.changed(self._stamps):
            fd_messages.send(connection, {"differs": f"{path}, which has changed since: the server has ended"}, [])
            self._end()
        if differs := self._difference(message):
            fd_messages.send(connection, {"differs": differs}, [])
            return
        pid = os.fork()
        if pid == 0:
            self._close_in_child()
            expected = agent_main.Imported(tuple(self._typed["preload"]), self._late, self._typed["record"])
            run.supervise(connection, message, fds, self._said, expected, self._chose_threads)
        self._runs[os.pidfd_open(pid)] = pid
        self._count += 1
        self._used_s = time.monotonic()

    def _difference(self, message: dict[str, Any]) -> str:
        """Between what the server is and what a run wants, in words."""
        state, typed = message["state"], message["typed"]
        if differs := process_state.difference(self._state, state):
            return differs
        if typed["preload"] != self._typed["preload"]:
            return "--preload"
        if typed["preload"] and self._program_folder(typed, state) != self._program_folder(self._typed, self._state):
            return "the folder of the program, where --preload looks for modules"
        if typed["record"] != self._typed["record"]:
            return "--no-record"
        if (late := _late(typed, state["cwd"])) != self._late:
            return f"the program, which {'needs' if late else 'does not need'} {', '.join(late or self._late)}"
        return "the length of the command" if message["title_bytes"] > self._title_bytes else ""

    def _program_folder(self, typed: dict[str, Any], state: dict[str, Any]) -> Path:
        return folder_of(_program(typed), state["cwd"])

    def _status(self) -> dict[str, Any]:
        now_s = time.monotonic()
        return {
            "pid": os.getpid(),
            "python": sys.executable,
            "preload": [*self._late, *self._typed["preload"]],
            "age_s": now_s - self._began_s,
            "starts": self._count,
            "running": len(self._runs),
            "left_s": None if self._runs else self._used_s + self._idle_s - now_s,
            "changed": installation.changed(self._stamps),
        }

    def _close_in_child(self) -> None:
        self._listener.close()
        os.close(self._folder_fd)
        for pidfd in self._runs:
            os.close(pidfd)

    def _end(self) -> NoReturn:
        """Runs continue without the server."""
        with contextlib.suppress(OSError):
            os.unlink(self._name, dir_fd=self._folder_fd)
        os._exit(0)


def _late(typed: dict[str, Any], cwd: str) -> tuple[str, ...]:
    return preload.of_torch(_program(typed), cwd)


def _program(typed: dict[str, Any]) -> Program:
    return Program(typed["kind"], typed["script"])


def _listen() -> tuple[int, str, socket.socket]:
    path = private_folder.path(os.environ)
    folder_fd = private_folder.opened(path, make=True)
    if folder_fd is None:
        raise UsageError(f"{path} must be a folder that only this user can open (chmod 700): remove it, and try again")
    name = f"warm-{os.getpid()}"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(private_folder.socket_path(folder_fd, name))
    listener.listen(16)
    return folder_fd, name, listener
