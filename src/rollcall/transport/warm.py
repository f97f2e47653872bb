"""A warm start from the launcher's side: finds the warm servers of this user, and takes an agent from one of them.

Before a run has its agent, this file imports almost nothing, not even typing: imports would delay the start.
"""

import os
import sys

from rollcall.linux import process_state, process_title, warm_servers
from rollcall.transport.local import LocalAgent, copy_of_stdin, inheritable_fds

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any

    from rollcall.transport.warm_process import WarmProcess

_TITLE_BYTES = 16 << 10  # of the command lines that ranks of a warm server can show
# As for a cold agent: nothing that lies in this folder may take the place of a module that it imports.
_SERVER = (
    "import sys; sys.flags.safe_path or sys.path.pop(0); from rollcall.agent.fast_import.begin import begin; begin(); "
    "from rollcall.agent.warm.server import main; main()"
)


def take(start_options: "dict[str, Any]") -> LocalAgent | None:
    """An agent of a warm server, if it equals the agent of a cold start. If this Python has servers and none of them
    fits, prints what differs. Does nothing if no server was started."""
    agent: LocalAgent | None
    agent, why_none = warm_servers.use_first(warm_servers.RUNS, lambda link: _run(link, start_options))
    if why_none:
        from rollcall.errors import say

        say(why_none)
    return agent


def is_ready(start_options: "dict[str, Any]") -> bool:
    """Whether there is a server for this already."""
    question = {"ask": "matches", **_wanted(start_options), "title_bytes": _title_bytes()}
    return any(answer["differs"] == "" for answer in warm_servers.ask_all(warm_servers.RUNS, question))


def start(start_options: "dict[str, Any]", idle_s: float) -> int:
    """Start a server with all that a cold agent of this process would inherit. Returns a file that gets its answer when
    it is ready."""
    import json

    wanted = json.dumps({**_wanted(start_options), "idle_s": idle_s}).encode()
    inherited = inheritable_fds()
    its_in, writer_fd = os.pipe()
    reader_fd, its_out = os.pipe()
    its_err = os.memfd_create("stderr")
    command = [sys.executable, "-u", "-c", _SERVER]
    os.posix_spawn(
        sys.executable,
        [*command, " " * _TITLE_BYTES],
        os.environ,
        file_actions=[
            *((os.POSIX_SPAWN_DUP2, fd, target) for target, fd in enumerate((its_in, its_out, its_err))),
            *((os.POSIX_SPAWN_CLOSE, fd) for fd in inherited),
        ],
        setsid=True,
    )
    for fd in (its_in, its_out, its_err):
        os.close(fd)
    with os.fdopen(writer_fd, "wb") as file:
        file.write(wanted)
    return reader_fd


def _wanted(start_options: "dict[str, Any]") -> "dict[str, Any]":
    return {"state": process_state.current(), "start_options": start_options}


def _title_bytes() -> int:
    return process_title.size([sys.executable, "-u", *sys.argv])


def _run(link: "socket.socket", start_options: "dict[str, Any]") -> tuple[LocalAgent | None, str]:
    """The agent; or what differs."""
    question = {"ask": "use", **_wanted(start_options), "title_bytes": _title_bytes()}
    stdin_fd = copy_of_stdin()
    its_in, writer_fd = os.pipe()
    reader_fd, its_out = os.pipe()
    answer = warm_servers.ask(link, question, [its_in, its_out, 2, stdin_fd])
    for fd in (its_in, its_out, stdin_fd):
        os.close(fd)
    if answer is not None and "stdin_fd" in answer:
        link.settimeout(None)
        return LocalAgent(
            lambda: _process(answer["pid"], link), writer_fd, reader_fd, answer["stdin_fd"], link.close
        ), ""
    for fd in (writer_fd, reader_fd):
        os.close(fd)
    link.close()
    return None, "a server that does not answer" if answer is None else answer["differs"]


def _process(pid: int, link: "socket.socket") -> "WarmProcess":
    from rollcall.transport.warm_process import WarmProcess

    return WarmProcess(pid, link)
