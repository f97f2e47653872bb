"""python -m rollcall.native

Compiles the C++ parts of rollcall: the C++ recorder (record/cpp/recorder.cpp), and a patch that stops gloo's listener
from spinning (compat/gloo_listener.cpp). It takes half a minute, once per environment: the result must match the
installed torch exactly. Without it, or with ROLLCALL_NATIVE=0, Python records, and gloo is left as it is.
"""

import functools
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

from rollcall.errors import RollcallError

_HERE = Path(__file__).parent
SOURCES = (_HERE / "record/cpp/recorder.cpp", _HERE / "compat/gloo_listener.cpp")
_LIBRARIES = ("c10", "torch_cpu", "torch_python")


def target(source: Path) -> Path:
    """Where it is, or would be: another torch, Python or source has another name."""
    import torch

    fits = f"{torch.__version__} {EXTENSION_SUFFIXES[0]} {sys.version}".encode()
    return source.with_name(f"{source.stem}-{hashlib.sha256(fits + source.read_bytes()).hexdigest()[:16]}.so")


@functools.cache
def load(source: Path) -> Any:
    """The module, or None. torch is there by then, whose libraries are ours, too."""
    path = target(source)
    if os.environ.get("ROLLCALL_NATIVE") == "0" or not path.exists():
        return None
    spec = importlib.util.spec_from_file_location(f"rollcall.{source.stem}", path)
    if spec is None or spec.loader is None:
        return None
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError:  # made for another machine
        return None
    return module


def build(source: Path) -> Path:
    """Compile it, if that has not been done."""
    made = target(source)
    if made.exists():
        return made
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        raise RollcallError("there is no C++ compiler: install g++, or go on without")
    began = made.with_suffix(f".{os.getpid()}")
    ran = subprocess.run([compiler, *_words(source, began)], capture_output=True, text=True)
    if ran.returncode:
        began.unlink(missing_ok=True)
        said = next((line for line in ran.stderr.splitlines() if "error" in line), ran.stderr.strip())
        raise RollcallError(f"{source.name} does not compile here ({said}): go on without")
    for old in source.parent.glob(f"{source.stem}-*.so"):
        old.unlink()
    began.rename(made)
    return made


def _words(source: Path, out: Path) -> list[str]:
    import torch

    home = Path(torch.__file__).parent
    include = home / "include"
    return [
        *("-O2", "-fPIC", "-shared", "-std=c++20", "-fvisibility=hidden"),
        *(f"-I{folder}" for folder in (include, include / "torch/csrc/api/include", sysconfig.get_path("include"))),
        str(source),
        *("-o", str(out), f"-L{home / 'lib'}", *(f"-l{name}" for name in _LIBRARIES)),
    ]


def main() -> int:
    """Build all of it, and say where it is."""
    try:
        for source in SOURCES:
            print(f"{source.stem} is here: {build(source)}")
    except RollcallError as error:
        print(f"rollcall: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
