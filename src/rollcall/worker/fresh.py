"""What a fresh interpreter of `rollcall run` does when its recording begins, so that it can be debugged."""

import contextlib
import sys
import warnings
from pathlib import Path

from rollcall.worker import main


def begin() -> None:
    main.take_requests()
    file = getattr(sys.modules["__main__"], "__file__", None)
    # It was removed or changed since: it runs on. Python has shown the warnings of its code already.
    with contextlib.suppress(OSError, SyntaxError, ValueError), warnings.catch_warnings(action="ignore"):
        if file:
            main.wait_longer_if_stopping(compile(Path(file).read_bytes(), file, "exec", dont_inherit=True))
