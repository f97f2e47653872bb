"""Cutting the network of a virtual host while a program runs: no packet passes any more, and nobody is told.

The switch of the virtual hosts is a network namespace that the launcher has an open file of. There the host's port is
set to drop everything, as in tests/cluster.
"""

import contextlib
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_MOST_S = 20.0
_LOOK_S = 0.05
_ENOUGH_LINES = 3


@contextlib.contextmanager
def cutting(program: Any, home: Path) -> Iterator[None]:
    """While inside, the run below `home` loses the host that the program names, if it names one."""
    if not program.cut:
        yield
        return
    over = threading.Event()
    cutter = threading.Thread(target=_cut_in_time, args=(home / "runs" / "latest", program, over))
    cutter.start()
    try:
        yield
    finally:
        over.set()
        cutter.join()


def _cut_in_time(run: Path, program: Any, over: threading.Event) -> None:
    """Once every rank has printed a few lines, and so is in the middle of its work."""
    for _ in range(int(_MOST_S / _LOOK_S)):
        logs = [log.read_bytes().count(b"\n") for log in run.glob("logs/attempt-0/rank-*.log")]
        if len(logs) == program.ranks and min(logs) >= _ENOUGH_LINES:
            cut(run, program.cut)
            return
        if over.wait(_LOOK_S):
            return


def cut(run: Path, host: str) -> None:
    launcher = json.loads((run / "run.json").read_text())["launcher_pid"]
    port = f"port{host.removeprefix('host-')}"
    for fd in Path(f"/proc/{launcher}/fd").iterdir():
        with contextlib.suppress(OSError):
            if os.readlink(fd).startswith("net:["):
                words = ["nsenter", f"--net={fd}", "bridge", "link", "set", "dev", port, "state", "0"]
                if subprocess.run(words, capture_output=True, check=False).returncode == 0:
                    return
    raise RuntimeError(f"the launcher {launcher} has no switch with {port}: is it root, and are they virtual hosts?")
