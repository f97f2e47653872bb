"""Reads the Python stacks of another process with py-spy, where that is installed: it needs nothing of the process."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

_TIMEOUT_S = 5.0
_NATIVE_TIMEOUT_S = 20.0  # it reads the symbols of all libraries
Frames = list[tuple[str, int, str]]  # file, line and function, innermost first


def command() -> str | None:
    """Beside this Python, or on the PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def main_thread(pid: int, native: bool = False) -> Frames:
    """The stack of the main thread of a process, which is not paused; empty if that is not possible. With `native`,
    also its frames of C and C++, whose line may be 0: for those the process is paused for a moment."""
    found = command()
    if found is None:
        return []
    try:
        dump = [found, "dump", "--native" if native else "--nonblocking", "--json", "--pid", str(pid)]
        timeout_s = _NATIVE_TIMEOUT_S if native else _TIMEOUT_S
        ran = subprocess.run(dump, capture_output=True, timeout=timeout_s, check=True)
        return parse(json.loads(ran.stdout))
    except (OSError, subprocess.SubprocessError, ValueError, TypeError, KeyError):
        return []


def parse(threads: list[dict[str, Any]]) -> Frames:
    """The main thread is the one with the number of its process."""
    for thread in threads:
        if thread.get("os_thread_id") == thread["pid"] or thread.get("thread_name") == "MainThread":
            return [(str(each["filename"]), int(each["line"]), str(each["name"])) for each in thread["frames"]]
    return []
