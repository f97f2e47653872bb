"""Takes a fork server from a process of `rollcall warm`, if a cold start would give the same ranks."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from typing import Any

from rollcall.compat.torch_dns import impatient_env
from rollcall.errors import UsageError, say
from rollcall.linux import private_folder, process_state, warm_servers
from rollcall.worker.fork_server import ForkServer

# Variables that are not compared: sys.path is compared in place of PYTHONPATH, and pytest sets its own for each test,
# and reads them itself.
_GIVEN_LATER = ("PYTHONPATH", "PYTEST_", "ROLLCALL_PYTEST_")


class WarmForkServer(ForkServer):
    """A fork server that is not a child of this process: after its end, another process may have its pid."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        super().__init__(pid, connection)
        self._pidfd = os.pidfd_open(pid)

    def close(self) -> None:
        self._socket.close()
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        select.select([self._pidfd], [], [])  # until it has ended
        os.close(self._pidfd)


def take(env: dict[str, str], preload: list[str]) -> ForkServer | None:
    """A fork server as `python -m rollcall.functions` would start it in this environment. If no warm process with this
    Python fits, print what differs, and return None."""
    if env.get(warm_servers.SWITCH) == "0":
        return None
    server: ForkServer | None
    server, why_none = warm_servers.use_first(warm_servers.CALLS, lambda link: _use(link, env, preload))
    if why_none:
        say(why_none)
    return server


def _use(link: socket.socket, env: dict[str, str], preload: list[str]) -> tuple[ForkServer | None, str]:
    here, there = socket.socketpair()
    question = {"ask": "use", **_wanted(env), "env": {**env, **impatient_env()}, "preload": preload}
    with link, there:
        answer = warm_servers.ask(link, question, [there.fileno(), 1, 2])
    if answer is not None and "pid" in answer:
        with contextlib.suppress(ProcessLookupError):
            return WarmForkServer(answer["pid"], here), ""
        answer = None
    here.close()
    return None, "a server that does not answer" if answer is None else answer["differs"]


def is_ready() -> bool:
    answers = warm_servers.ask_all(warm_servers.CALLS, {"ask": "matches", **_wanted(_own_env())})
    return any(answer["differs"] == "" for answer in answers)


def start(idle_s: float) -> int:
    """Start a warm process. Returns a file descriptor: what it writes there when it is ready can be read from it."""
    reader_fd, its_out = os.pipe()
    its_err = os.memfd_create("stderr")
    process = subprocess.Popen(
        [sys.executable, "-m", "rollcall.functions"],
        stdin=subprocess.PIPE,
        stdout=its_out,
        stderr=its_err,
        env={**_own_env(), **impatient_env()},
        cwd=_empty_folder(),  # python -m looks for modules there first
        start_new_session=True,
    )
    for fd in (its_out, its_err):
        os.close(fd)
    assert process.stdin is not None
    with process.stdin as file:
        file.write(json.dumps({**_wanted(_own_env()), "idle_s": idle_s}).encode())
    process.returncode = 0  # it stays: Popen would warn that nobody has waited for it
    return reader_fd


def _own_env() -> dict[str, str]:
    return {"OMP_NUM_THREADS": "1", **os.environ}


def _empty_folder() -> str:
    path = private_folder.path(os.environ)
    fd = private_folder.opened(path, make=True)
    if fd is None:
        raise UsageError(private_folder.needed(path))
    os.close(fd)
    return path


def _wanted(env: dict[str, str]) -> dict[str, Any]:
    compared = {name: value for name, value in env.items() if not name.startswith(_GIVEN_LATER)}
    path = [os.path.abspath(folder) for folder in sys.path if folder]
    return {"state": {**process_state.current(), "environ": compared}, "path": path}
