"""python -m rollcall.native

Compiles the C++ parts of rollcall: the C++ recorder (record/cpp/recorder.cpp), a patch that stops gloo's listener from
spinning (compat/gloo_listener.cpp), and the device of `rollcall rehearse` (rehearse/rank/pretended_cuda.cpp). It takes
a minute, once per environment: the result must match the installed torch exactly. It is written beside its source, or
to the user's cache folder if that is not possible. Without it, or with ROLLCALL_NATIVE=0, Python records, and
gloo is left as it is. No run compiles by itself: the compiler would take the cores from the ranks."""

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
from rollcall.torch_version import torch_version

_HERE = Path(__file__).parent
SOURCES = (_HERE / "record/cpp/recorder.cpp", _HERE / "compat/gloo_listener.cpp")
# Not among those: no run needs it, and `rollcall rehearse` compiles it by itself.
PRETENDED_CUDA = _HERE / "rehearse/rank/pretended_cuda.cpp"
_LIBRARIES = ("c10", "torch_cpu", "torch_python")


@functools.cache
def load(source: Path) -> Any:
    """The compiled module, or None. Import torch before: the module needs its libraries."""
    if os.environ.get("ROLLCALL_NATIVE") == "0":
        return None
    try:
        path = find(source)
        spec = path and importlib.util.spec_from_file_location(f"rollcall.{source.stem}", path)
        if not spec or spec.loader is None:
            return None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError:  # made for another machine
        return None
    return module


def find(source: Path) -> Path | None:
    """The compiled file for the installed torch, if there is one."""
    return next((path for path in _targets(source) if path.exists()), None)


def build(source: Path) -> Path:
    """The compiled file, compiled now if there is none."""
    if found := find(source):
        return found
    compiler = _find_compiler()
    if compiler is None:
        raise RollcallError("there is no C++ compiler: install g++, or continue without")
    target = _writable(source)
    began = target.with_suffix(f".{os.getpid()}")
    ran = subprocess.run([compiler, *_compiler_options(source, began)], capture_output=True, text=True)
    if ran.returncode:
        began.unlink(missing_ok=True)
        message = next((line for line in ran.stderr.splitlines() if "error" in line), ran.stderr.strip())
        raise RollcallError(f"{source.name} does not compile here ({message}): continue without")
    for old in source.parent.glob(f"{source.stem}-*.so"):  # not in the cache, which several environments share
        if target.parent == source.parent:
            old.unlink()
    began.rename(target)
    return target


def suggestion() -> str | None:
    """A hint to compile, once per installed torch; None if everything is compiled, or nothing can be."""
    marker = _targets(SOURCES[0])[1].with_suffix(".suggested")
    if os.environ.get("ROLLCALL_NATIVE") == "0" or all(map(find, SOURCES)) or marker.exists() or not _find_compiler():
        return None
    try:
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()
    except OSError:  # without the marker, every run would print it
        return None
    return "`python -m rollcall.native` makes recording cheaper (it compiles for half a minute, once)"


def _targets(source: Path) -> tuple[Path, Path]:
    """Where its compiled file may be. Each torch, Python and source has a file of its own name."""
    fits = f"{torch_version()} {EXTENSION_SUFFIXES[0]} {sys.version}".encode()
    text = b"".join(path.read_bytes() for path in (source, *sorted(source.parent.glob("*.h"))))
    name = f"{source.stem}-{hashlib.sha256(fits + text).hexdigest()[:16]}.so"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    return source.with_name(name), cache / "rollcall" / name


def _writable(source: Path) -> Path:
    """The first of these places that can be written."""
    beside, cached = _targets(source)
    if os.access(beside.parent, os.W_OK):
        return beside
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RollcallError(f"neither {beside.parent} nor {cached.parent} can be written: {error.strerror}") from None
    return cached


def _find_compiler() -> str | None:
    return shutil.which(os.environ.get("CXX", "g++"))


def _compiler_options(source: Path, out: Path) -> list[str]:
    # torch.utils.cpp_extension knows the same two folders, but imports setuptools, which an environment may lack.
    import torch  # here: a run asks only whether there are compiled files

    home = Path(torch.__file__).parent
    include = home / "include"
    return [
        *("-O2", "-fPIC", "-shared", "-std=c++20", "-fvisibility=hidden"),
        *(f"-I{folder}" for folder in (include, include / "torch/csrc/api/include", sysconfig.get_path("include"))),
        str(source),
        # With the path to torch's libraries: one of them is loaded before torch is.
        *("-o", str(out), f"-L{home / 'lib'}", f"-Wl,-rpath,{home / 'lib'}", "-Wl,--as-needed"),
        *(f"-l{name}" for name in _LIBRARIES),
    ]


def main() -> int:
    """Build all of it, and say where it is."""
    try:
        for source in (*SOURCES, PRETENDED_CUDA):
            print(f"{source.stem} is here: {build(source)}")
    except RollcallError as error:
        print(f"rollcall: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
