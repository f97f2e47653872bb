"""This machine: its agent is started before anything else, because its import of torch takes longest.

`start_early` is called before the command line is read; the run then takes over this agent. Before the agent is
started, this file imports almost nothing, not even typing: imports would delay the start.
"""

import os
import sys

from rollcall.linux import process_title

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rollcall.linux.child_process import ChildProcess
    from rollcall.protocol.hosts import Host
    from rollcall.transport.connection import Connection, StartAgents

# Without this folder on its path: nothing that lies here may take the place of a module it imports.
_AGENT = (
    "import sys; sys.flags.safe_path or sys.path.pop(0); from rollcall.agent.fast_import.begin import begin; begin(); "
    "from rollcall.agent.main import main; main()"
)


class LocalAgent:
    """An agent on this machine, and our ends of its pipes. `process` is the part of Popen that is used for it, made
    when it is needed; `close` frees what else was opened for the agent."""

    def __init__(
        self,
        process: "Callable[[], ChildProcess]",
        writer_fd: int,
        reader_fd: int,
        stdin_fd: int,
        close: "Callable[[], None]",
    ) -> None:
        self.writer, self.reader = os.fdopen(writer_fd, "wb"), os.fdopen(reader_fd, "rb")
        self._process, self._stdin_fd, self._close = process, stdin_fd, close
        self._connection: Connection | None = None

    def connection(self) -> "Connection":
        from rollcall.transport.connection import Connection

        if self._connection is None:
            self._connection = Connection(
                self.reader,
                self.writer,
                self._process(),
                greets=False,
                needs_heartbeat=False,  # its pipe breaks when one of us dies, and only then
                stdin_fd=self._stdin_fd,
            )
        return self._connection

    def end(self) -> None:
        import contextlib

        process = self.connection().process
        assert process is not None
        process.kill()
        process.wait()
        self.reader.close()
        with contextlib.suppress(OSError):  # it had no time to read all
            self.writer.close()
        self._close()


_early: list[LocalAgent] = []


def start_early() -> LocalAgent:
    """Start an agent that the next run will take."""
    agent = _start()
    _early.append(agent)
    return agent


def use_early(agent: LocalAgent) -> None:
    """Have the next run take this agent."""
    _early.append(agent)


def end_early() -> None:
    """End the agent that no run has taken: the command line was wrong, or asked for something else."""
    while _early:
        _early.pop().end()


def opened() -> "Iterator[StartAgents]":
    """A generator for contextlib.contextmanager: starts agents here, and ends them with the run."""
    started: list[LocalAgent] = []

    def start(hosts: "list[Host]", connected: "Callable[[Host, Connection], None]") -> None:
        for host in hosts:
            started.append(_early.pop() if _early else _start())
            connected(host, started[-1].connection())

    try:
        yield start
    finally:
        for agent in started:
            agent.end()


def _start() -> LocalAgent:
    stdin_fd = copy_of_stdin()
    inherited = inheritable_fds()
    its_in, writer_fd = os.pipe()
    reader_fd, its_out = os.pipe()
    os.set_inheritable(stdin_fd, True)
    # Unbuffered, as torchrun starts its ranks: they inherit it.
    command = [sys.executable, "-u", "-c", _AGENT]
    # Not subprocess: to import it takes longer than to start a process.
    pid = os.posix_spawn(
        sys.executable,
        [*command, *process_title.padding(command, [sys.executable, "-u", *sys.argv])],
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_DUP2, its_in, 0),
            (os.POSIX_SPAWN_DUP2, its_out, 1),
            *((os.POSIX_SPAWN_CLOSE, fd) for fd in inherited),
        ],
        setsid=True,  # the terminal's Ctrl-C comes to us alone, and we pass it on
    )
    os.set_inheritable(stdin_fd, False)
    for fd in (its_in, its_out):
        os.close(fd)

    def process() -> "ChildProcess":
        from rollcall.linux.child_process import ChildProcess

        return ChildProcess(pid)

    return LocalAgent(process, writer_fd, reader_fd, stdin_fd, lambda: os.close(stdin_fd))


def copy_of_stdin() -> int:
    try:
        return os.dup(0)
    except OSError:  # we were started with it closed
        os.open(os.devnull, os.O_RDONLY)  # which takes its place
        return os.dup(0)


def inheritable_fds() -> list[int]:
    """Beyond the standard streams, and below the limit: posix_spawn refuses to close a file beyond it."""
    fds = [int(name) for name in os.listdir("/proc/self/fd")]
    is_open = [fd for fd in fds if os.path.exists(f"/proc/self/fd/{fd}")]  # not the one that was opened to see them
    limit = os.sysconf("SC_OPEN_MAX")
    return [fd for fd in is_open if 2 < fd < limit and os.get_inheritable(fd)]
