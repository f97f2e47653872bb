"""What a fresh interpreter of `rollcall run` does when its recording begins: it takes requests, such as those of a
debugger, and registers a function that prevents an abort of torch at its end."""

import atexit
import contextlib
import site
import sys
import warnings
from pathlib import Path

from rollcall.compat import gloo_exit
from rollcall.worker import main


def begin() -> None:
    gloo_exit.install()
    atexit.register(gloo_exit.settle)  # for a program that does not destroy its group
    main.take_requests()
    file = getattr(sys.modules["__main__"], "__file__", None)
    # It was removed or changed since: it runs on. Python has shown the warnings of its code already.
    with contextlib.suppress(OSError, SyntaxError, ValueError), warnings.catch_warnings(action="ignore"):
        if file:
            main.wait_longer_if_stopping(compile(Path(file).read_bytes(), file, "exec", dont_inherit=True))


def has_autostart() -> bool:
    """Whether fresh interpreters begin to record by themselves: by a file that an installation has."""
    folders = [*site.getsitepackages(), site.getusersitepackages()]
    return any(Path(folder, "rollcall_autostart.pth").exists() for folder in folders)
