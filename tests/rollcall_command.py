"""Starting `rollcall run` for real, and looking at what it leaves."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.torch_output import without_torchs

PROGRAMS = Path(__file__).parent / "programs"
ROLLCALL = [str(Path(sys.executable).with_name("rollcall"))]
MARK = "ROLLCALL_TEST_MARK"


@dataclass
class Result:
    code: int
    out: str
    err: str


class Runner:
    """`rollcall` in a folder of its own, with a mark by which every process of it can be found."""

    def __init__(self, folder: Path, env: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        # Whoever runs the tests may have a warm server of their own.
        own = {**os.environ, MARK: str(folder), "ROLLCALL_DIR": str(folder / ".rollcall"), "ROLLCALL_WARM": "0"}
        self.env = dict(env or own)
        self.mark = f"{MARK}={self.env[MARK]}"

    def start(self, *words: object, **popen: object) -> "subprocess.Popen[str]":
        options: dict[str, object] = {
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "stdin": subprocess.DEVNULL,
            "text": True,
            **popen,
        }
        return subprocess.Popen([*ROLLCALL, *map(str, words)], cwd=self.folder, env=self.env, **options)  # type: ignore[call-overload,no-any-return]

    def __call__(self, *words: object, stdin: str | None = None, timeout_s: float = 180) -> Result:
        process = self.start(*words, stdin=subprocess.PIPE)
        try:
            out, err = process.communicate(stdin, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            pytest.fail(f"rollcall did not end within {timeout_s} s; it said:\n{out}\n{err}")
        return Result(process.returncode, without_torchs(out), err)

    def script(self, text: str, name: str = "script.py") -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def latest(self) -> Path:
        return self.folder / ".rollcall" / "runs" / "latest"

    def processes(self) -> list[psutil.Process]:
        """Everything alive that carries our mark, wherever it was reparented to."""
        found = []
        for process in psutil.process_iter():
            try:
                environ = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
                if self.mark.encode() in environ and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (OSError, psutil.Error):
                continue
        return found

    def wait_until_gone(self) -> list[psutil.Process]:
        """What is left. On a quiet machine all are gone within 3 s; on a busy one they get their turn later."""
        return [] if until(lambda: not self.processes()) else self.processes()


def until(condition: Callable[[], object], timeout_s: float = 120) -> bool:
    """Wait for a condition; whether it came true."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False
