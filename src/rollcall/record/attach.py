"""Recording in a process that another launcher started: rank 0 chooses the folder of the run and tells the others.

No agent watches such a process, so it records its own end; a process that is killed leaves what it wrote until then.
"""

import atexit
import functools
import json
import multiprocessing
import os
import socket
import sys
from datetime import UTC, datetime
from multiprocessing.util import Finalize
from pathlib import Path
from types import TracebackType
from typing import Any

from rollcall.errors import say_if_possible
from rollcall.record import recorder
from rollcall.runs import runs_home

_KEY = "rollcall/run"
_LAST = -1000  # the priority of a finalizer of multiprocessing: those of the program run before


def begin(store: Any, rank: int, world_size: int, attempt: int) -> None:
    """Record from now on, unless this rank is recorded already. Where that fails, as on a disk that is full, the
    program runs without recording."""
    if recorder.current() is not None:
        return
    try:
        if folder := _agree_on_folder(store, rank, world_size):
            record_end_of(recorder.begin(folder, rank, world_size, attempt))
        else:
            say_if_possible(f"rank {rank} is not recorded: rank 0 could not make a folder for the recording")
    except OSError as error:
        say_if_possible(
            f"rank {rank} is not recorded: cannot write to {error.filename or 'the recording'} ({error.strerror})"
        )
    except Exception as error:  # no error of the recorder may reach the program
        say_if_possible(f"rank {rank} is not recorded ({type(error).__name__}: {error})")


def _agree_on_folder(store: Any, rank: int, world_size: int) -> Path | None:
    if folder := os.environ.get("ROLLCALL_RUN"):
        return Path(folder)
    if (folder := os.environ.get("ROLLCALL_RECORD", "")) not in ("", "0", "1"):
        return Path(folder)
    if rank == 0:
        path = None
        try:
            path = _make_folder(world_size)
        finally:
            store.set(_KEY, str(path or ""))  # the others wait for it
        return path
    chosen = store.get(_KEY).decode()
    return Path(chosen) if chosen else None


def first_facts(recorded_by: str, world_size: int) -> dict[str, Any]:
    """What one rank can write into the run.json of a run that `rollcall run` did not start."""
    return {
        "command": sys.orig_argv,
        "started": datetime.now(UTC).astimezone().isoformat(timespec="seconds"),
        "host": socket.gethostname(),
        "recorded_by": recorded_by,
        "attempts": [{"attempt": 0, "world_size": world_size}],
    }


def _make_folder(world_size: int) -> Path:
    """Like a folder of `rollcall run`, with what one rank knows."""
    now = datetime.now(UTC).astimezone()
    stem = Path(sys.argv[0]).stem or "python"
    path = runs_home(os.environ) / f"{now:%Y-%m-%dT%H-%M-%S}-{stem}-{os.getpid()}"
    path.mkdir(parents=True)
    facts = first_facts("rollcall.init", world_size)
    (path / "run.json").write_text(json.dumps(facts, indent=2) + "\n")
    latest = path.parent / "latest"
    fresh = latest.with_name(f"latest-{os.getpid()}")
    fresh.symlink_to(path.name)
    fresh.replace(latest)
    return path


def record_end_of(recording: recorder.Recorder) -> None:
    """Nobody watches this process, so it records how it ends."""
    hook = sys.excepthook

    def record_and_call(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        recording.note_end(1, error.with_traceback(traceback))
        hook(kind, error, traceback)

    sys.excepthook = record_and_call
    if multiprocessing.parent_process() is None:
        atexit.register(recording.note_end, 0, None)  # does nothing after an error, which is recorded already
    else:
        Finalize(None, _record_end_of_child, (recording, None), exitpriority=_LAST)
        if autostart := sys.modules.get("rollcall_autostart"):
            autostart.on_error.append(functools.partial(_record_end_of_child, recording))


def _record_end_of_child(recording: recorder.Recorder, error: BaseException | None) -> None:
    """multiprocessing catches what its child raises, so that no excepthook is called. Before Python 3.13, it runs
    finalizers before that; later, rollcall_autostart tells of the error. torch.multiprocessing.spawn has caught it,
    and called sys.exit(1): the error is the context of the exit."""
    error = error or sys.exc_info()[1]
    if isinstance(error, SystemExit) and error.code in (None, 0):
        error = None
    elif isinstance(error, SystemExit) and isinstance(error.__context__, Exception):
        error = error.__context__
    code = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
    recording.note_end(0 if error is None else code, error)
