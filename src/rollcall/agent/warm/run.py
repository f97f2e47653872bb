"""One run of a warm server: its agent, and a process above it that ends whatever the agent leaves behind.

    warm server ── supervisor ── agent ── fork servers ── ranks

With a cold start, the launcher is the process above the agent. The server cannot do this: it serves several runs, and
may end before them.
"""

import contextlib
import os
import select
import signal
import socket
import time
from typing import Any, NoReturn

from rollcall.agent import main as agent_main
from rollcall.linux import fd_messages, prctl

_ORPHANED_S = 3.0  # for the agent to end its ranks once the launcher is gone; then the supervisor does
_LOOK_S = 0.5


def supervise(
    connection: socket.socket,
    message: dict[str, Any],
    fds: list[int],
    said: bytes,
    expected: agent_main.Imported,
    chose_threads: bool,
) -> NoReturn:
    """Runs in a fork of the server, until the run ends."""
    os.setsid()
    prctl.become_subreaper()
    its_in, its_out, stderr, stdin = fds
    _become(message["state"], stderr, said, chose_threads)
    pid = os.fork()
    if pid == 0:
        os.setsid()  # as the launcher starts a cold agent
        os.dup2(its_in, 0)
        os.dup2(its_out, 1)
        for fd in (its_in, its_out, stderr, connection.detach()):
            os.close(fd)
        agent_main.begin_warm(stdin, expected, chose_threads)
    for fd in fds:
        os.close(fd)
    fd_messages.send(connection, {"differs": "", "pid": pid, "stdin_fd": stdin}, [])
    code = _watch(pid, connection)
    from rollcall.linux import process_tree  # here: it imports psutil, which ranks shall not have loaded

    process_tree.end_all(0)
    with contextlib.suppress(OSError):
        fd_messages.send(connection, {"code": code}, [])
    os._exit(0)


def _become(state: dict[str, Any], stderr: int, said: bytes, chose_threads: bool) -> None:
    """What the launcher would have handed down, where it may differ from the server's."""
    os.environ.clear()
    os.environ.update(state["environ"])
    if chose_threads:
        os.environ["OMP_NUM_THREADS"] = "1"
    os.chdir(state["cwd"])
    os.dup2(stderr, 2)
    os.write(2, said)


def _watch(agent: int, connection: socket.socket) -> int:
    """Waits for the agent and returns its exit code. The launcher may ask to kill it; when the launcher is gone, the
    agent has a moment to end by itself."""
    prctl.ignore_stop_signals()
    pidfd = os.pidfd_open(agent)
    until_s = float("inf")
    waiting_for: list[int | socket.socket] = [pidfd, connection]
    while pidfd not in select.select(waiting_for, [], [], _LOOK_S)[0]:
        if connection in waiting_for and select.select([connection], [], [], 0)[0]:
            if _wants_kill(connection):
                os.kill(agent, signal.SIGKILL)
            else:
                waiting_for.remove(connection)
                until_s = time.monotonic() + _ORPHANED_S
        if time.monotonic() > until_s:
            os.kill(agent, signal.SIGKILL)
    _, status = os.waitpid(agent, 0)
    return os.waitstatus_to_exitcode(status)


def _wants_kill(connection: socket.socket) -> bool:
    """False: the launcher is gone."""
    try:
        fd_messages.receive(connection)
    except (OSError, EOFError):
        return False
    return True
