"""The programs that hosts are made of, and daemons that end when we do."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

# Daemons live in sbin, which a user's PATH may lack.
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])
# What a daemon needs of our environment. Not the rest: what a test leaks in there would reach the hosts.
ENVIRON = {"PATH": SEARCH_PATH}


def find(program: str) -> str:
    """The full path of a program; sshd insists on one."""
    path = shutil.which(program, path=SEARCH_PATH)
    if path is None:
        raise FileNotFoundError(f"{program} is not installed")
    return path


def why_not(programs: list[str]) -> str | None:
    """Why hosts cannot be made here; None where they can."""
    if os.geteuid() != 0:
        return "needs root: hosts are network namespaces"
    missing = [program for program in programs if shutil.which(program, path=SEARCH_PATH) is None]
    if missing:
        return f"needs {', '.join(missing)}, not installed here"
    # Root in a container may still lack the right to do so.
    probe = subprocess.run([find("unshare"), "--net", "--uts", "--mount", "true"], capture_output=True, text=True)
    return probe.stderr.strip() or None


def call(*words: object, stdin: str | None = None) -> str:
    """Run a short command that must succeed; what it printed."""
    program, *rest = map(str, words)
    done = subprocess.run([find(program), *rest], input=stdin, capture_output=True, text=True, env=ENVIRON)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, words))}: exit {done.returncode}: {done.stderr.strip()}")
    return done.stdout


class Daemon:
    """A child in the foreground, which the kernel kills should we die before stopping it."""

    def __init__(self, words: list[str], log: Path) -> None:
        self.log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [find("setpriv"), "--pdeathsig", "KILL", *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=ENVIRON,
                cwd="/",
                start_new_session=True,  # Ctrl-C at the terminal ends the tests, which then stop this
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_until(self, ready: Callable[[], object], timeout_s: float = 20) -> None:
        deadline = time.monotonic() + timeout_s
        while not ready():
            code = self.process.poll()
            if code is not None or time.monotonic() > deadline:
                state = f"not ready after {timeout_s} s" if code is None else f"gone, with exit code {code}"
                raise RuntimeError(f"{self.log.stem} is {state}; its log:\n{self.log.read_text()}")
            time.sleep(0.01)

    def stop(self) -> None:
        """Ask first: slurmctld has a child of its own to end."""
        self.process.terminate()
        try:
            self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
