"""The recorder's hand in C++: a tenth of the time for each phase of a DDP step, two thirds of it for an op.

It is built once per environment, by `python -m rollcall.record.native`, since it must fit torch to the byte. Where that
has not been done, or there was no compiler, Python does the same. ROLLCALL_NATIVE=0 has it so, too.

pen.cpp     the hand itself
build       compiles it
ring        the ring that it writes to
recorder    the recorder that moves it
"""

import importlib.util
import os
from typing import Any

from rollcall.record.native import build


def _load() -> Any:
    """The module, or None. torch is there by then, whose libraries are the pen's, too."""
    path = build.target()
    if os.environ.get("ROLLCALL_NATIVE") == "0" or not path.exists():
        return None
    spec = importlib.util.spec_from_file_location("rollcall.record.native.pen", path)
    if spec is None or spec.loader is None:
        return None
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError:  # made for another machine: Python does its work
        return None
    return module


pen = _load()
