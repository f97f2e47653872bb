"""First things first: the agent is started at once, for it takes a second to import torch.

`begin` comes before the command line is even read. While the agent imports torch, this process, which
never does, reads the command line, makes the plan, and imports what it needs to follow the run.
"""

import os
import sys

from rollcall.linux import process_title

TYPE_CHECKING = False  # this file imports next to nothing, not even typing, before the agent is on its way
if TYPE_CHECKING:
    from collections.abc import Mapping

    from rollcall.linux.child_process import Child
    from rollcall.protocol.plan import Plan

# Without this folder on its path: nothing that lies here may take the place of a module it imports.
_AGENT = (
    "import sys; sys.flags.safe_path or sys.path.pop(0); from rollcall.agent.fast_import.begin import begin; begin(); "
    "from rollcall.agent.main import main; main()"
)


class Agent:
    """The agent's process, our ends of its pipes, and the number under which it has our standard input, to pass it on
    to the ranks."""

    def __init__(self, pid: int, writer_fd: int, reader_fd: int, stdin_fd: int) -> None:
        self.writer, self.reader = os.fdopen(writer_fd, "wb"), os.fdopen(reader_fd, "rb")
        self._pid, self.stdin_fd = pid, stdin_fd
        self._process: Child | None = None

    @property
    def process(self) -> "Child":
        from rollcall.linux.child_process import Child

        self._process = self._process or Child(self._pid)
        return self._process

    def end(self) -> None:
        import contextlib

        self.process.kill()
        self.process.wait()
        self.reader.close()
        with contextlib.suppress(OSError):  # it had no time to read all
            self.writer.close()
        os.close(self.stdin_fd)


# Options with which the ranks run on other hosts than this one, real or virtual.
_ELSEWHERE = {"--hosts", "--hostfile", "--virtual-hosts", "--slurm", "--kubernetes", "--dry-run"}
# What reads the command line, and what follows a run.
_OURS = ("rollcall.cli.app", "pydantic.type_adapter", "rollcall.coordinator.launcher", "rollcall.linux.process_tree")
_GENTLE = 10
_FEW_CORES = 2
_PATIENCE_S = 0.5
_begun: list[Agent] = []
# Signals that would have ended us: noted from the first moment on, and heeded by the launcher.
interrupts: list[int] = []


def begin(elsewhere: bool = False) -> None:
    """Start an agent that the next run will take; or none, if the run will be elsewhere."""
    if not elsewhere:
        _begun.append(_start())
    from rollcall.linux import prctl

    _note_interrupts()
    prctl.become_subreaper()
    if not elsewhere:
        _give_way(_begun[-1])
        _import_gently()


def _note_interrupts() -> None:
    import signal

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            continue  # nohup, or a shell that started us in the background
        # Not KeyboardInterrupt: raised in the middle of an import it may be lost.
        signal.signal(number, lambda number, _frame: interrupts.append(number))


def _give_way(agent: Agent) -> None:
    """Until the agent says that it needs one core only, if there are but two."""
    if len(os.sched_getaffinity(0)) <= _FEW_CORES:
        import select

        select.select([agent.reader], [], [], _PATIENCE_S)


def _import_gently() -> None:
    """What this process needs, in a thread that gives way: the agent is the one that everybody waits for."""
    import contextlib
    import importlib
    import threading

    def work() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _GENTLE)  # on Linux, of this thread alone
        for name in _OURS:
            with contextlib.suppress(ImportError):  # whoever needs it will say so
                importlib.import_module(name)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def is_elsewhere(argv: list[str], environ: "Mapping[str, str]") -> bool:
    """Whether this run will most likely need no agent of this process: a guess, before the command line is read."""
    words = {word.partition("=")[0].replace("_", "-") for word in argv}
    return bool(words & _ELSEWHERE) or any(name in environ for name in ("SLURM_JOB_ID", "PBS_NODEFILE"))


def abandon() -> None:
    """End the agent that no run has taken: the command line was wrong, or asked for something else."""
    while _begun:
        _begun.pop().end()


def run(plan: "Plan") -> int:
    """Run the plan; the exit code is that of the first rank to fail."""
    if plan.hosts:
        return _lead(plan)
    if not _begun:
        begin()
    agent = _begun.pop()
    from rollcall.coordinator import launcher
    from rollcall.linux import process_tree

    try:
        return launcher.follow(plan, agent)
    finally:
        agent.end()
        process_tree.end_all(0)


def _lead(plan: "Plan") -> int:
    """On several hosts: the agent that was started here, in case, is not needed."""
    abandon()
    from rollcall.coordinator import launcher
    from rollcall.linux import process_tree

    try:
        return launcher.lead(plan)
    finally:
        process_tree.end_all(0)


def _start() -> Agent:
    stdin_fd = _copy_of_stdin()
    inherited = [fd for fd in _open_fds() if fd > 2 and os.get_inheritable(fd)]
    its_in, writer_fd = os.pipe()
    reader_fd, its_out = os.pipe()
    os.set_inheritable(stdin_fd, True)
    # Unbuffered, as torchrun starts its ranks: they inherit it.
    words = [sys.executable, "-u", "-c", _AGENT]
    # Not subprocess: to import it takes longer than to start a process.
    pid = os.posix_spawn(
        sys.executable,
        [*words, *process_title.padding(words, [sys.executable, "-u", *sys.argv])],
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
    return Agent(pid, writer_fd, reader_fd, stdin_fd)


def _copy_of_stdin() -> int:
    try:
        return os.dup(0)
    except OSError:  # we were started with it closed
        os.open(os.devnull, os.O_RDONLY)  # which takes its place
        return os.dup(0)


def _open_fds() -> list[int]:
    """Without the one that was opened to see them."""
    fds = [int(name) for name in os.listdir("/proc/self/fd")]
    return [fd for fd in fds if os.path.exists(f"/proc/self/fd/{fd}")]
