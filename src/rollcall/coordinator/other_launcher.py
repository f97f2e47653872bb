"""Runs a command whose ranks another launcher starts, and records these ranks."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rollcall.coordinator.run_folder import RunFolder
from rollcall.errors import UsageError, say
from rollcall.protocol.exit_codes import how_it_ended, shell_code
from rollcall.record import ring_format
from rollcall.units import plural


def run(command: list[str], out: Path | None, ring_mb: int | None = None) -> int:
    """Run the command, and return its exit code. The recording is a run of this folder, or in the new folder `out`."""
    if shutil.which(command[0]) is None:
        raise UsageError(f"there is no command {command[0]}: check its name, and that it is on the PATH")
    folder = RunFolder.create_for_command(command, out)
    began_s = time.monotonic()
    sizes = {} if ring_mb is None else {ring_format.MB_VARIABLE: str(ring_mb)}
    code = _run(command, {"ROLLCALL_RECORD": str(folder.path), **sizes})
    seconds = round(time.monotonic() - began_s, 3)
    folder.save(outcome="failed" if code else "ok", exit_code=shell_code(code), seconds=seconds)
    _tell(folder.path, code)
    return shell_code(code)


def _run(command: list[str], variables: dict[str, str]) -> int:
    """Returns the exit code. Signals go to the command: a terminal sends Ctrl-C to both, and it decides what to do."""
    with subprocess.Popen(command, env={**os.environ, **variables}) as process:

        def pass_on(number: int, _frame: Any) -> None:
            if number != signal.SIGINT:  # the terminal has sent that to the command already
                process.send_signal(number)

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, pass_on)
        return process.wait()


def _tell(folder: Path, code: int) -> None:
    ranks = len(list(folder.glob("rings/*/*.ring")))
    where = os.path.relpath(folder)
    if not ranks:
        say(
            f"nothing was recorded in {where}: no Python that has rollcall installed formed a process group"
            f" (this one is {sys.executable})"
        )
        return
    if code:
        from rollcall.explain.terminal import tell  # here: numpy is needed only when something went wrong

        say(f"the command {how_it_ended(code)}")
        tell(folder, said=())
    say(f"{plural(ranks, 'rank')} recorded in {where}: `rollcall explain` says what happened")
