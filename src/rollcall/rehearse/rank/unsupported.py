"""What cannot be rehearsed: a sentence with the line, and what to do."""

import os
import re
import sys
import traceback
from pathlib import Path
from types import TracebackType

from rollcall.errors import RollcallError

missing = ("", "")  # a file that was not there, for which the program has failed, and the line
found = ""  # the first that this process has come to: its program may catch the error and go on


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


# What torch and Triton say themselves of a device or of data that is not there: no error of the program. What to do.
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


def watch_for_uncaught() -> None:
    """An error that the program does not catch, and that only a rehearsal has."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        global found, missing
        said = _words_for(error)
        if file := _NO_FILE.search(str(error)):
            missing = os.path.abspath(file[1]), _place(trace)
        if said is not None and not found:
            found = f"{_place(trace)}: {said}"
        before(kind, error, trace)

    sys.excepthook = hook


_NO_FILE = re.compile("No such file or directory: '([^']+)'")


def _words_for(error: BaseException) -> str | None:
    """A package that is not here may well be where the program is going to run."""
    if isinstance(error, ModuleNotFoundError):
        return f"{error}, here; install it, or put a stub in its place for the rehearsal"
    return next((words for part, words in _SAID.items() if part in str(error)), None)


def _place(trace: TracebackType | None) -> str:
    """The innermost line of the program."""
    from rollcall.record import sites  # here, as above

    own = [frame for frame in traceback.extract_tb(trace) if sites.is_users_file(frame.filename)]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else "the program"
