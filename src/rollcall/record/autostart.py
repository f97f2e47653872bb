"""Begins to record a rank that another launcher has started; rollcall_autostart calls it.

The folder is $ROLLCALL_RECORD: `rollcall record` sets it, or the user in a job script. All ranks of a job name the same
folder; on several hosts it is on a shared disk.
"""

import contextlib
import functools
import inspect
import json
import os
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rollcall.errors import say_if_possible
from rollcall.protocol import torchrun_env
from rollcall.record import attach, recorder, ring_format
from rollcall.runs import read_facts, rings_of

# For launchers that set no RANK: what Open MPI and SLURM tell their processes.
_OTHER_NAMES = (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"))
# What names a job to all of its processes, and another job otherwise.
_JOB_NAMES = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "PBS_JOBID", "PMIX_NAMESPACE")
_CHOOSE = "choose a new folder for ROLLCALL_RECORD"


def begin(init: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether this process is recorded from now on. Never raises: the program continues without a recording."""
    folder = os.environ.get("ROLLCALL_RECORD", "")
    if recorder.current() is not None or folder in ("", "0", "1"):  # 1: rollcall.init records by itself
        return False
    place = find_place(init, args, kwargs, os.environ)
    if place is None:
        _say_once("this process is not recorded: neither its arguments nor its environment say which rank it is")
        return False
    rank, world_size = place
    try:
        path, attempt = Path(folder).absolute(), _number(os.environ, torchrun_env.ATTEMPT) or 0
        _write_facts(path, world_size)
        if another := find_another_run(path, world_size, attempt, os.environ):
            _say_once(f"rank {rank} is not recorded: {folder} has a recording of {another}; {_CHOOSE}")
            return False
        attach.record_end_of(recorder.begin(path, rank, world_size, attempt))
    except FileExistsError:
        _say_once(f"rank {rank} is not recorded: {folder} has a recording of this rank already; {_CHOOSE}")
    except OSError as error:
        _say_once(f"rank {rank} is not recorded: cannot write to {folder} ({error.strerror})")
    except Exception as error:  # no error of the recorder may reach the program
        _say_once(f"rank {rank} is not recorded ({type(error).__name__}: {error})")
    return recorder.current() is not None


@functools.cache
def _say_once(sentence: str) -> None:
    """A program may form groups all the time, as a test suite does."""
    say_if_possible(sentence)


def find_place(
    init: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], environ: Mapping[str, str]
) -> tuple[int, int] | None:
    """Rank and world size: as init_process_group is called with them, or as the launcher has set them."""
    try:
        given = inspect.signature(init).bind_partial(*args, **kwargs).arguments
    except (TypeError, ValueError):  # torch will say what is wrong with the arguments
        given = {}
    named = given.get("rank"), given.get("world_size")
    for rank, world_size in (named, *((_number(environ, r), _number(environ, w)) for r, w in _names())):
        if isinstance(rank, int) and isinstance(world_size, int) and 0 <= rank < world_size:
            return rank, world_size
    return None


def _names() -> tuple[tuple[str, str], ...]:
    return ((torchrun_env.NUMBERS["rank"], torchrun_env.NUMBERS["world_size"]), *_OTHER_NAMES)


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if text.isdecimal() else None


def _write_facts(folder: Path, world_size: int) -> None:
    """run.json, by the first rank that comes; `rollcall record` has written one before."""
    folder.mkdir(parents=True, exist_ok=True)
    facts = {**attach.first_facts("ROLLCALL_RECORD", world_size), "job": _job(os.environ)}
    try:
        with open(folder / "run.json", "x") as file:
            json.dump(facts, file, indent=2)
    except FileExistsError:
        return


def find_another_run(folder: Path, world_size: int, attempt: int, environ: Mapping[str, str]) -> str:
    """What the folder is a recording of, if that is not the run of this process; else empty."""
    job, mine = read_facts(folder).get("job"), _job(environ)
    if isinstance(job, dict) and job != mine:
        return f"another run ({_in_words(job)}, and this is {_in_words(mine)})"
    found = _recorded_world_size(rings_of(folder, attempt))
    return f"another run (of {found} ranks, and this is one of {world_size})" if found not in (0, world_size) else ""


def _job(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: environ[name] for name in _JOB_NAMES if name in environ}


def _in_words(job: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in job.items()) or "one without a job number"


def _recorded_world_size(rings: Path) -> int:
    """Returns the world size that one of the rings has; 0 if there is none yet."""
    with contextlib.suppress(OSError, struct.error), os.scandir(rings) as entries:
        for entry in entries:
            if entry.name.endswith(".ring"):
                with open(entry.path, "rb") as file:
                    return ring_format.world_size_of(file.read(ring_format.HEADER.size))
    return 0
