"""Compiling pen.cpp, which takes half a minute, for this torch and this Python."""

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from rollcall.errors import RollcallError

_HERE = Path(__file__).parent
_SOURCE = _HERE / "pen.cpp"
_LIBRARIES = ("c10", "torch_cpu", "torch_python")


def target() -> Path:
    """Where it is, or would be: another torch, Python or source has another name."""
    import torch

    fits = f"{torch.__version__} {EXTENSION_SUFFIXES[0]}".encode()
    return _HERE / f"pen-{hashlib.sha256(fits + _SOURCE.read_bytes()).hexdigest()[:16]}.so"


def build() -> Path:
    """Compile it, if that has not been done."""
    made = target()
    if made.exists():
        return made
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        raise RollcallError("there is no C++ compiler: install g++, or go on without, and Python records")
    began = made.with_suffix(f".{os.getpid()}")
    ran = subprocess.run([compiler, *_words(began)], capture_output=True, text=True)
    if ran.returncode:
        began.unlink(missing_ok=True)
        said = next((line for line in ran.stderr.splitlines() if "error" in line), ran.stderr.strip())
        raise RollcallError(f"pen.cpp does not compile here ({said}): go on without, and Python records")
    for old in _HERE.glob("pen-*.so"):
        old.unlink()
    began.rename(made)
    return made


def _words(out: Path) -> list[str]:
    import torch

    home = Path(torch.__file__).parent
    include = home / "include"
    return [
        *("-O2", "-fPIC", "-shared", "-std=c++20", "-fvisibility=hidden"),
        *(f"-I{folder}" for folder in (include, include / "torch/csrc/api/include", sysconfig.get_path("include"))),
        str(_SOURCE),
        *("-o", str(out), f"-L{home / 'lib'}", *(f"-l{name}" for name in _LIBRARIES)),
    ]


def main() -> int:
    try:
        print(f"the recorder's fast part is here: {build()}")
    except RollcallError as error:
        print(f"rollcall: {error}", file=sys.stderr)
        return 1
    return 0
