"""First things first: the agent is started at once, for it takes a second to import torch.

`begin` comes before the command line is even read. While the agent imports torch, this process, which
never does, reads the command line, makes the plan, and imports what it needs to follow the run.
"""

import contextlib
import importlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollcall.launch.host import supervise, title
from rollcall.launch.host.names import impatient_env

if TYPE_CHECKING:
    from rollcall.launch.plan import Plan

# Without this folder on its path: nothing that lies here may take the place of a module it imports.
_AGENT = (
    "import sys; sys.flags.safe_path or sys.path.pop(0); from rollcall.launch.host import ahead; ahead.begin(); "
    "from rollcall.launch.host.agent import main; main()"
)


@dataclass(frozen=True)
class Agent:
    """The agent's process, and the number under which it has our standard input, to pass it on to the ranks."""

    process: "subprocess.Popen[bytes]"
    stdin_fd: int

    def end(self) -> None:
        with self.process:
            self.process.kill()
        os.close(self.stdin_fd)


# Options with which the ranks run on other hosts than this one, real or virtual.
_ELSEWHERE = {"--hosts", "--hostfile", "--virtual-hosts", "--slurm", "--kubernetes", "--dry-run"}
# What reads the command line, and what follows a run.
_OURS = ("rollcall.cli", "pydantic.type_adapter", "rollcall.launch.launcher", "rollcall.launch.host.family")
_GENTLE = 10
_begun: list[Agent] = []
# Signals that would have ended us: noted from the first moment on, and heeded by the launcher.
interrupts: list[int] = []


def begin(elsewhere: bool = False) -> None:
    """Start an agent that the next run will take; or none, if the run will be elsewhere."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            continue  # nohup, or a shell that started us in the background
        # Not KeyboardInterrupt: raised in the middle of an import it may be lost.
        signal.signal(number, lambda number, _frame: interrupts.append(number))
    supervise.become_subreaper()
    if not elsewhere:
        _begun.append(_start())
        _import_gently()


def _import_gently() -> None:
    """What this process needs, in a thread that gives way: the agent is the one that everybody waits for."""

    def work() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _GENTLE)  # on Linux, of this thread alone
        for name in _OURS:
            with contextlib.suppress(ImportError):  # whoever needs it will say so
                importlib.import_module(name)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def is_elsewhere(argv: list[str], environ: Mapping[str, str]) -> bool:
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
    from rollcall.launch import launcher
    from rollcall.launch.host import family

    try:
        return launcher.follow(plan, agent)
    finally:
        agent.end()
        family.end_all(0)


def _lead(plan: "Plan") -> int:
    """On several hosts: the agent that was started here, in case, is not needed."""
    abandon()
    from rollcall.launch import launcher
    from rollcall.launch.host import family

    try:
        return launcher.lead(plan)
    finally:
        family.end_all(0)


def _start() -> Agent:
    stdin_fd = _copy_of_stdin()
    # Unbuffered, as torchrun starts its ranks: they inherit it.
    words = [sys.executable, "-u", "-c", _AGENT]
    process = subprocess.Popen(
        [*words, *title.padding(words, [sys.executable, "-u", *sys.argv])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=(stdin_fd,),
        env={**os.environ, **impatient_env()},
        start_new_session=True,  # the terminal's Ctrl-C comes to us alone, and we pass it on
    )
    return Agent(process, stdin_fd)


def _copy_of_stdin() -> int:
    try:
        return os.dup(0)
    except OSError:  # we were started with it closed
        return os.open(os.devnull, os.O_RDONLY)
