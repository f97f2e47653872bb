"""What cannot be rehearsed: a sentence with the line, and what to do."""

import os
import pickle
import re
import subprocess
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

from rollcall.errors import RollcallError

missing = ("", "")  # a file that was not there, for which the program has failed, and the line
failed_program = ""  # the first line on which the program has started another one that has failed
found = ""  # the first one in this process: the program may catch the error and continue


class Unsupported(RollcallError):  # noqa: N818  (it is read as a sentence: raise Unsupported(...))
    """Raised in the script, at the line that cannot be rehearsed."""

    def __init__(self, what: str, advice: str) -> None:
        from rollcall.rehearse.rank.values import (
            users_line,  # here: it imports torch, and the launcher reads this module
        )

        file, line = users_line()
        sentence = f"{Path(file).name}:{line}: {what}; {advice}"
        super().__init__(sentence)
        global found
        found = found or sentence


# Errors of torch and Triton about a missing device or missing data, which are no errors of the program; and what to do.
STUB = "put a stub in its place for the rehearsal, which makes results of the right shape"
_SAID = {
    "Cannot access data pointer of Tensor": f"C++ code reads the data of a tensor, which has none here; {STUB}",
    "with arguments from the 'CUDA' backend": f"it runs an op on the GPU that does not tell its shapes; {STUB}",
    "no fake impl registered": "it runs an op of its own; tell its shapes with torch.library.register_fake",
    "active drivers": f"it runs a Triton kernel; {STUB}",
    **dict.fromkeys(
        (
            *("Tried to instantiate dummy base class", "Torch not compiled with CUDA enabled", "requires CUDA support"),
            *("Found no NVIDIA driver", "CUDA driver version is insufficient", "has no attribute '_cuda"),
            "without ATen_cuda library",
        ),
        "it uses a part of torch.cuda that is not there; leave it out here",
    ),
    **dict.fromkeys(
        ("'nvidia-smi'", "NVML Shared Library Not Found", "libcuda", "libnvidia"),
        "it asks the driver of a GPU, which is not there; leave it out here",
    ),
}


def watch_for_programs() -> None:
    """Programs that this one starts cannot write files. One that fails may have failed for this reason, and the file
    that it should have made is then missing."""
    plain_wait, plain_system = subprocess.Popen.wait, os.system

    def note(code: int) -> int:
        global failed_program
        if code and not failed_program:
            from rollcall.rehearse.rank.values import users_place  # here, as above

            failed_program = users_place()
        return code

    def wait(process: Any, *args: Any, **kwargs: Any) -> int:
        return note(plain_wait(process, *args, **kwargs))

    programs: Any = subprocess.Popen
    programs.wait = wait
    os.system = lambda command: note(plain_system(command))


def watch_for_uncaught() -> None:
    """An error that the program does not catch, and that happens only in a rehearsal."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        global found, missing
        said = _words_for(error)
        if file := _NO_FILE.search(str(error)):
            missing = os.path.abspath(file[1]), _place(trace)
            if failed_program and not _is_of_subprocess(trace):
                why = f"and the program that {failed_program} starts has failed"
                said = said or f"{Path(file[1]).name} is not there, {why}; {_NOT_MADE}"
        said = said or _words_for_unknown(error, _place(trace))
        if said is not None and not found:
            found = f"{_place(trace)}: {said}"
        before(kind, error, trace)

    sys.excepthook = hook


_NOT_MADE = "programs that a script starts may write nothing in a rehearsal: do it in Python, or leave it out here"
_NO_FILE = re.compile("No such file or directory: '([^']+)'")


def _words_for(error: BaseException) -> str | None:
    """A package that is missing here may be installed where the program will run."""
    if isinstance(error, (pickle.UnpicklingError, EOFError)):
        return "it reads an object of another rank that is too large to be followed here; tell a smaller one"
    if isinstance(error, subprocess.CalledProcessError):
        return f"the program that it starts ends with exit code {error.returncode}; {_NOT_MADE}"
    if _is_refused(error):
        return f"code in C writes outside of the folder of the run: {error}; write from Python, or leave it out here"
    if isinstance(error, ModuleNotFoundError):
        return f"{error}, here; install it, or put a stub in its place for the rehearsal"
    return next((words for part, words in _SAID.items() if part in str(error)), None)


def _words_for_unknown(error: BaseException, place: str) -> str | None:
    """The program fails on a line that branches on an unknown value, such as `assert (labels < 10).all()`."""
    from rollcall.rehearse.rank import values  # here, as above

    if not any(place in each.decided for each in values.notes.unknowns.values()):
        return None
    return f"it decides by a value that is not known here, and fails ({type(error).__name__}); try --assume {place}=1"


def _is_of_subprocess(trace: TracebackType | None) -> bool:
    """A program that is not installed, and not a file that one should have made."""
    return traceback.extract_tb(trace)[-1:][0].filename == subprocess.__file__ if trace else False


def _is_refused(error: BaseException) -> bool:
    """Whether the kernel has refused to write. Python's own functions write to the folder of the run instead, so that
    only what cannot be read is an error of the program."""
    if "unable to open database file" in str(error):
        return True
    if isinstance(error, PermissionError):
        return error.filename is not None and os.access(error.filename, os.R_OK)
    return isinstance(error, RuntimeError) and "Permission denied" in str(error)


def _place(trace: TracebackType | None) -> str:
    """The innermost line of the program."""
    from rollcall.record import sites  # here, as above

    own = [frame for frame in traceback.extract_tb(trace) if sites.is_users_file(frame.filename)]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else "the program"
