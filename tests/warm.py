"""Warm servers: one of a test's own, which ends with the test, and one that the tests of this process share."""

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from rollcall.linux import warm_servers
from tests.rollcall_command import MARK, ROLLCALL, Result, Runner

_STARTS = (
    "import json, sys; from rollcall.linux import warm_servers;"
    "print(json.dumps(warm_servers.ask_all(sys.argv[1], {'ask': 'status'})))"
)


_SERVE_RUNS = (
    "import os; from rollcall.transport import warm;"
    "start_options = {'preload': [], 'record': True, 'kind': 'module', 'script': '-'};"
    "print(os.fdopen(warm.start(start_options, 1800)).read())"
)


@functools.cache
def _shared() -> tuple[dict[str, str], int]:
    """The environment in which runs find the server that all tests of this process share, and its process."""
    folder = tempfile.TemporaryDirectory(prefix="rollcall-tests-")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ROLLCALL_", "PYTEST_CURRENT"))}
    env = {**kept, MARK: folder.name, "XDG_RUNTIME_DIR": folder.name}
    begun = subprocess.run(
        [sys.executable, "-c", _SERVE_RUNS], env=env, cwd=folder.name, capture_output=True, text=True, timeout=180
    )
    assert begun.stdout.strip() == "ready", begun.stderr
    atexit.register(folder.cleanup)
    atexit.register(subprocess.run, [*ROLLCALL, "warm", "--stop"], env=env, stdout=subprocess.DEVNULL)
    (server,) = servers(Runner(Path(folder.name), env))
    return env, server["pid"]


class WarmRunner(Runner):
    """`rollcall` whose runs take their agent from a server that the tests of this process share: a quarter of the work
    of a cold start. Ranks are forks of the server, so they carry its mark."""

    def __init__(self, folder: Path) -> None:
        env, self._server = _shared()
        super().__init__(folder, env)

    def __call__(self, *words: object, stdin: str | None = None, timeout_s: float = 180) -> Result:
        result = super().__call__(*words, stdin=stdin, timeout_s=timeout_s)
        assert "started without the warm server" not in result.err, result.err
        return result

    def processes(self) -> list[psutil.Process]:
        return [process for process in super().processes() if process.pid != self._server]


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


def servers(rollcall: Runner, kind: str = warm_servers.RUNS) -> list[dict[str, int]]:
    asked = subprocess.run(
        [sys.executable, "-c", _STARTS, kind], env=rollcall.env, capture_output=True, text=True, check=True, timeout=180
    )
    found: list[dict[str, int]] = json.loads(asked.stdout)
    return found
