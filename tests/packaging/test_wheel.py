"""The wheel, in an environment where rollcall comes from it alone: nothing is taken from the source tree."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

import rollcall
from tests.said import said

ROOT = Path(__file__).parents[2]
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
SUM = """\
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print(int(total))
"""


@dataclass
class Installed:
    """An environment with the wheel in it, and a folder to work in."""

    python: Path
    folder: Path

    def __call__(self, program: str, *words: str) -> str:
        """What a program of this environment prints; it has to succeed."""
        env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        ran = subprocess.run(
            [str(self.python.with_name(program)), *words],
            cwd=self.folder,
            env={**env, "ROLLCALL_DIR": str(self.folder / ".rollcall")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=180,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    options = ["--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    subprocess.run([*PIP, "wheel", *options, str(ROOT)], check=True, timeout=180)
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Its dependencies are those of the environment that runs the tests, by a line in a .pth file."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True, timeout=180)
    python = folder / "venv" / "bin" / "python"
    subprocess.run([*PIP, "--python", python, "install", "--no-deps", "--no-index", wheel], check=True, timeout=180)
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    # Python reads no .pth files in a folder that is named in one: the editable install there stays out.
    packages.joinpath("dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (folder / "work").mkdir()
    (folder / "work" / "script.py").write_text(SUM)
    return Installed(python, folder / "work")


def test_it_holds_sources_and_no_compiled_file(wheel: Path) -> None:
    """C++ sources, what pages are made of, the marker of typed packages; and the license beside them."""
    kinds = {Path(name).suffix for name in zipfile.ZipFile(wheel).namelist()}
    assert kinds >= {".py", ".cpp", ".h", ".c", ".js", ".css", ".typed"}
    assert not kinds & {".so", ".pyc"}


def test_other_programs_find_it_by_entry_points(wheel: Path) -> None:
    """The shell, pytest and plain torchrun."""
    (path,) = (name for name in zipfile.ZipFile(wheel).namelist() if name.endswith("entry_points.txt"))
    lines = zipfile.ZipFile(wheel).read(path).decode().splitlines()
    groups = {line for line in lines if line.startswith("[")}
    assert groups == {"[console_scripts]", "[pytest11]", "[torchrun.handlers]"}


def test_its_version_is_the_packages(wheel: Path) -> None:
    assert wheel.name == f"torch_rollcall-{rollcall.__version__}-py3-none-any.whl"


def test_its_commands_work(installed: Installed) -> None:
    """rollcall is imported from it, says its version, runs two ranks, explains and reports that run, performs an
    experiment, and trains. The two ranks are fresh interpreters, which are recorded by the .pth file that Python reads
    at its start; those of the training are forked. One test: several workers of pytest would each build it."""
    where = installed("python", "-c", "import rollcall; print(rollcall.__file__)").strip()
    assert Path(where).is_relative_to(installed.python.parents[1])
    assert installed("rollcall", "version").startswith(f"rollcall {rollcall.__version__}, torch ")
    assert said(installed("rollcall", "run", "-n", "2", "--start", "fresh", "script.py")) == {"2": [0, 1]}
    assert "2 of 2 ranks recorded" in installed("rollcall", "explain")
    page = installed.folder / installed("rollcall", "report").strip()
    assert page.read_text().startswith("<!doctype html>")
    assert "hello" in installed("rollcall", "lab", "hello", "-n", "2", "--trials", "1", "--no-picture")
    installed("rollcall", "train", "-n", "2", "--epochs", "1")
    assert installed.folder.joinpath("snapshots").is_dir()
