"""A warm server of a test's own, in a folder of its own, which ends with the test."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rollcall.linux import kept_servers
from tests.rollcall_command import Runner

_STARTS = (
    "import json, sys; from rollcall.linux import kept_servers;"
    "print(json.dumps(kept_servers.ask_all(sys.argv[1], {'ask': 'status'})))"
)


@contextmanager
def own_runtime_folder(rollcall: Runner, folder: Path) -> Iterator[None]:
    """Servers that start inside are found by this test alone, and end with it."""
    (folder / "runtime").mkdir(mode=0o700)
    rollcall.env["XDG_RUNTIME_DIR"] = str(folder / "runtime")
    del rollcall.env["ROLLCALL_WARM"]
    try:
        yield
    finally:
        rollcall("warm", "--stop")


@contextmanager
def warm_server(rollcall: Runner, folder: Path) -> Iterator[Callable[[], int]]:
    """Gives the number of runs that the server has started."""
    with own_runtime_folder(rollcall, folder):
        begun = rollcall("warm")
        assert begun.code == 0, begun.err
        yield lambda: sum(each["starts"] for each in servers(rollcall))


def servers(rollcall: Runner, kind: str = kept_servers.RUNS) -> list[dict[str, int]]:
    asked = subprocess.run(
        [sys.executable, "-c", _STARTS, kind], env=rollcall.env, capture_output=True, text=True, check=True, timeout=180
    )
    found: list[dict[str, int]] = json.loads(asked.stdout)
    return found
