"""The first process on a host that is reached over a network: it answers the launcher, then watches the agent.

    launcher ── ssh, srun, … ── supervisor ── agent ── fork server ── ranks

The supervisor forks the agent at once, and the agent imports torch. The supervisor never imports torch, so it can
answer the launcher at the same time: which host this is, how it reaches the master. With the message Prepare, the agent
takes over the connection. From then on the supervisor does here what the launcher does on its own machine: when the
agent ends for any reason, or when the connection breaks, it ends all processes of the run that are left on this host.
"""

import contextlib
import json
import os
import select
import socket
import sys
import time
from typing import NoReturn

from rollcall.agent import hand_over
from rollcall.agent.host_info import host_info
from rollcall.agent.host_questions import HostQuestions
from rollcall.compat.torch_dns import impatient_env
from rollcall.linux import prctl
from rollcall.protocol.channel import AGENT_SPEAKS, Channel, take_stdio
from rollcall.protocol.exit_codes import shell_code
from rollcall.protocol.messages import AgentEnded, Prepare

_ORPHANED_S = 3.0  # for the agent to end its ranks once the connection is cut; then the supervisor does
_LOOK_S = 0.5
_LOST_CONNECTION = 1
_SETTINGS_TAKEN = "ROLLCALL_SETTINGS_TAKEN"


def main(purpose: str) -> NoReturn:
    """`run` prepares an agent; `check` only answers."""
    if not _connected_back():
        _take_settings()
    os.environ.update(impatient_env())
    prctl.become_subreaper()
    prctl.ignore_stop_signals()
    reader_fd, writer_fd = take_stdio()
    agent, link = _fork_agent(reader_fd, writer_fd) if purpose == "run" else (None, None)
    os.write(writer_fd, f"\n{AGENT_SPEAKS}\n".encode())
    # Unbuffered: what comes behind Prepare is for the agent to read.
    channel = Channel.on(reader_fd, writer_fd, buffered=False)
    questions = HostQuestions(channel)
    prepare = _until_prepared(channel, questions)
    if prepare is None or agent is None or link is None:
        _end(0 if agent is None else _LOST_CONNECTION)
    hand_over.give(link, prepare, questions.take_listeners())
    code = _watch(agent, reader_fd)
    if code < 0:  # it was killed: nobody else can tell
        with contextlib.suppress(OSError):
            channel.send(AgentEnded(code))
    _end(shell_code(code))


def _connected_back() -> bool:
    """Started by a scheduler, there is no connection to the launcher yet: make one, in place of stdin and stdout."""
    if "ROLLCALL_CALL" not in os.environ:
        return False
    from rollcall.agent import connect_back  # here: it imports multiprocessing

    try:
        connection = connect_back.connect(os.environ)
    except OSError as error:
        sys.exit(f"{socket.gethostname()}: {error}")
    os.dup2(connection, 0)
    os.dup2(connection, 1)
    os.close(connection)
    return True


def _take_settings() -> None:
    """The first line is for the environment. A command line would show it to everyone, and a token is a token."""
    if os.environ.pop(_SETTINGS_TAKEN, None):
        return
    with open(0, "rb", buffering=0, closefd=False) as first:
        settings = json.loads(first.readline() or b"{}")
    os.environ.update(settings)
    if any(name.startswith(("LD_", "PYTHON")) for name in settings):
        os.environ[_SETTINGS_TAKEN] = "1"  # these count from the first moment of a process only
        os.execv(sys.executable, sys.orig_argv)


def _fork_agent(reader_fd: int, writer_fd: int) -> tuple[int, socket.socket]:
    here, there = socket.socketpair()
    supervisor = os.getpid()
    pid = os.fork()
    if pid == 0:
        here.close()
        from rollcall.agent import main as agent  # here: the supervisor answers before all of that is imported

        agent.follow(there, reader_fd, writer_fd, supervisor)
    there.close()
    return pid, here


def _until_prepared(channel: Channel, questions: HostQuestions) -> Prepare | None:
    with contextlib.suppress(OSError):  # the connection broke
        channel.send(host_info())
        return questions.until_prepared()
    return None


def _watch(agent: int, reader_fd: int) -> int:
    """Waits for the agent and returns its exit code. When the connection breaks, it has a moment to end by itself."""
    poll = select.poll()
    pidfd = os.pidfd_open(agent)
    poll.register(pidfd, select.POLLIN)
    poll.register(reader_fd, select.POLLRDHUP)  # and POLLHUP, which need not be asked for
    deadline = None
    while deadline is None or time.monotonic() < deadline:
        ready = dict(poll.poll(_LOOK_S * 1000))
        if pidfd in ready:
            _, status = os.waitpid(agent, 0)
            return os.waitstatus_to_exitcode(status)
        if reader_fd in ready and deadline is None:
            deadline = time.monotonic() + _ORPHANED_S
            poll.unregister(reader_fd)
    return _LOST_CONNECTION


def _end(code: int) -> NoReturn:
    from rollcall.linux import process_tree  # here: it imports psutil

    process_tree.end_all(0)
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1])
