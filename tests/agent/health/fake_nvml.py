"""Compiles the fake of NVIDIA's library."""

import shutil
import subprocess
from pathlib import Path

import pytest

_SOURCE = Path(__file__).with_name("fake_nvml.c")


def build(folder: Path) -> Path:
    library = folder / "libnvidia-ml.so.1"
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C compiler")
    subprocess.run([compiler, "-x", "c", "-shared", "-fPIC", "-o", library, _SOURCE], check=True)
    return library
