"""`rollcall run`, first things first: the agent is started at once, for it takes a second to import torch.

While it does, this process imports what it needs to follow the run. It never imports torch itself.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rollcall.launch import supervise, title
from rollcall.launch.names import impatient_env
from rollcall.launch.plan import Plan

# Without this folder on its path: nothing that lies here may take the place of a module it imports.
_AGENT = "import sys; sys.flags.safe_path or sys.path.pop(0); from rollcall.launch.agent import main; main()"


def run(plan: Plan) -> int:
    """Run the plan; the exit code is that of the first rank to fail."""
    supervise.become_subreaper()
    with _stdin() as stdin_fd, _start_agent(plan, stdin_fd) as agent:
        from rollcall.launch import family, launcher

        try:
            return launcher.follow(plan, agent, stdin_fd)
        finally:
            agent.kill()
            family.end_all(0)


@contextmanager
def _stdin() -> Iterator[int]:
    """Our standard input under a number that the agent can inherit: it passes it on to the ranks."""
    try:
        fd = os.dup(0)
    except OSError:  # we were started with it closed
        fd = os.open(os.devnull, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


def _start_agent(plan: Plan, stdin_fd: int) -> "subprocess.Popen[bytes]":
    env = {**os.environ, **impatient_env()}
    if plan.slots > 1:
        env.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does, or every rank takes every core
    # Unbuffered, as torchrun starts its ranks: they inherit it.
    words = [sys.executable, "-u", "-c", _AGENT]
    return subprocess.Popen(
        [*words, *title.padding(words, plan.program.command())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=(stdin_fd,),
        env=env,
        start_new_session=True,  # the terminal's Ctrl-C comes to us alone, and we pass it on
    )
