"""A warm server of a test's own, in a folder of its own, which ends with the test."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.rollcall_command import Runner

_STARTS = "import json; from rollcall.transport import warm; print(json.dumps(warm.ask_all({'ask': 'status'})))"


@contextmanager
def warm_server(rollcall: Runner, folder: Path, *words: str) -> Iterator[Callable[[], int]]:
    """Gives the number of runs that the servers of this test have started."""
    (folder / "runtime").mkdir(mode=0o700)
    rollcall.env["XDG_RUNTIME_DIR"] = str(folder / "runtime")
    del rollcall.env["ROLLCALL_WARM"]
    begun = rollcall("warm", *words)
    assert begun.code == 0, begun.err
    try:
        yield lambda: sum(each["starts"] for each in servers(rollcall))
    finally:
        rollcall("warm", "--stop")


def servers(rollcall: Runner) -> list[dict[str, int]]:
    asked = subprocess.run(
        [sys.executable, "-c", _STARTS], env=rollcall.env, capture_output=True, text=True, check=True, timeout=60
    )
    found: list[dict[str, int]] = json.loads(asked.stdout)
    return found
