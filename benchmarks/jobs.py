"""The commands that are measured. Each runs in its own folder, and all its processes are ended.

An environment variable (MARK) names the job's folder. All processes of a command inherit it, so those that a launcher
leaves behind are found even if their parent has ended.
"""

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import psutil

MARK = "ROLLCALL_BENCH"
_LOOK_S = 0.01
_END_S = 15.0
_LEAVE_S = 1.0  # for processes to end after their launcher
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_EXCEPTION = re.compile(r"\w+(Error|Exception): \S")
# Variables that would affect a launcher. Without bytecode, packages that pip did not compile (such as rollcall,
# installed from sources) would be compiled at every start.
_UNSET = ("PYTHONDONTWRITEBYTECODE", "OMP_NUM_THREADS", "RANK", "LOCAL_RANK", "WORLD_SIZE")
_UNSET_PREFIXES = ("PET_", "TORCH_", "TORCHELASTIC_", "MASTER_", "ACCELERATE_", "LT_", "ROLLCALL_")


class Jobs:
    """All commands of one benchmark, and their folder. At the end both are removed."""

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="rollcall-bench-"))
        self._count = 0
        return self

    def __exit__(self, *_: object) -> None:
        with undisturbed():
            _end(self._folder)
            shutil.rmtree(self._folder, ignore_errors=True)

    def start(self, words: Sequence[str], **env: str) -> "Job":
        """Start a command. Use it with `with`: at the end of the block it is ended."""
        folder = self.new_folder()
        return Job(words, folder, {**_environment(folder), **env})

    def new_folder(self) -> Path:
        self._count += 1
        folder = self._folder / f"job-{self._count}"
        folder.mkdir()
        return folder


class Job:
    """One command, and all processes that it started."""

    def __init__(self, words: Sequence[str], folder: Path, env: dict[str, str]) -> None:
        self.folder = folder
        self.ended_ns = 0
        with open(folder / "output.txt", "wb") as output:
            self.started_ns = time.time_ns()
            self._process = subprocess.Popen(
                words,
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches this process only, which ends the others
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        _end(self.folder)
        self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def wait(self, timeout_s: float) -> int | None:
        """The exit code of the command, or None if it takes longer. Does not poll, which would cost CPU time."""
        if self._process.returncode is not None:
            return self._process.returncode
        fd = os.pidfd_open(self._process.pid)
        try:
            if not select.select([fd], [], [], max(0.0, timeout_s))[0]:
                return None
        finally:
            os.close(fd)
        self.ended_ns = time.time_ns()
        return self._process.wait()

    def runs(self) -> bool:
        return self.wait(0) is None

    def wait_for_files(self, names: Sequence[str], timeout_s: float) -> dict[str, str]:
        """The contents of files with these names, which the ranks write; empty if they do not come in time."""
        paths = [self.folder / name for name in names]
        deadline_s = time.monotonic() + timeout_s
        while not all(path.exists() and path.stat().st_size for path in paths):
            if time.monotonic() > deadline_s or self._process.poll() is not None:
                return {}
            time.sleep(_LOOK_S)
        return {path.name: path.read_text() for path in paths}

    def numbers(self, pattern: str) -> list[int]:
        """The numbers in files with this pattern, which the ranks write."""
        return [int(path.read_text()) for path in sorted(self.folder.glob(pattern))]

    def processes(self) -> list[psutil.Process]:
        return _marked(self.folder)

    def left_behind(self) -> int:
        """The number of processes that are left after the command has ended."""
        deadline_s = time.monotonic() + _LEAVE_S
        while (left := len(self.processes())) and time.monotonic() < deadline_s:
            time.sleep(_LOOK_S)
        return left

    def last_words(self) -> str:
        """The reason of a failure: the last exception that was printed, or the end of the output."""
        lines = (self.folder / "output.txt").read_text(errors="replace").splitlines()
        errors = [line for line in lines if _EXCEPTION.search(line)]
        return "\n".join(f"    {line[:160]}" for line in errors[-1:] or lines[-3:] or ["(it printed nothing)"])


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Ignores signals: a second Ctrl-C must not interrupt the cleaning up."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _INTERRUPTS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def pss_bytes(pid: int) -> int:
    """The memory of a process; a page that n processes share counts as 1/n in each (PSS)."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def _environment(folder: Path) -> dict[str, str]:
    """This process's environment, without variables that would affect a launcher."""
    env = {
        name: value for name, value in os.environ.items() if name not in _UNSET and not name.startswith(_UNSET_PREFIXES)
    }
    places = {"TMPDIR": folder / "tmp", "ROLLCALL_DIR": folder / "rollcall", "HF_HOME": folder / "huggingface"}
    (folder / "tmp").mkdir()
    return {**env, **{name: str(place) for name, place in places.items()}, MARK: str(folder)}


def _marked(folder: Path) -> list[psutil.Process]:
    """The running processes of one job, or of all jobs of the folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            mark = process.environ().get(MARK, "")
            if (mark == str(folder) or mark.startswith(f"{folder}/")) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _end(folder: Path) -> None:
    deadline_s = time.monotonic() + _END_S
    looks = 0
    while looks < 2 and time.monotonic() < deadline_s:  # during an exec a process has no environment
        found = _marked(folder)
        looks = 0 if found else looks + 1
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()  # psutil checks that the id still is this process
        time.sleep(_LOOK_S)
