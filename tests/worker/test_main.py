"""A rank that was forked runs and ends as `python PROGRAM` does. Here without a fork server, in a process each."""

import compileall
import subprocess
import sys
from pathlib import Path

import pytest

RUN_HERE = """\
import sys
from rollcall.protocol.plan import Program
from rollcall.worker.main import run_here
sys.flags.safe_path or sys.path.pop(0)  # the agent's own
run_here(Program("script", sys.argv[1], ("a", "b c")), None)
"""
SHOW = "import sys; print(sys.argv, sys.path[0], __name__, __file__, __package__, type(__loader__))"
END = {
    "of 256 and more the last eight bits": "import sys; sys.exit(300)",
    "below zero": "import sys; sys.exit(-1)",
    "too large for C": "import sys; sys.exit(10 ** 30)",
    "a sentence": "import sys; sys.exit('a sentence')",
    "no code": "import sys; sys.exit(None)",
    "a false value": "import sys; sys.exit(False)",
    "an error": "def f(): raise ValueError('x')\nf()",
    "an error in another thread": "import threading; threading.Thread(target=lambda: 1 / 0, name='t').start()",
    "abort": "import os; os.abort()",
    "Ctrl-C": "raise KeyboardInterrupt",
    "a function at exit": "import atexit, os; atexit.register(os._exit, 7)",
}


def run(folder: Path, *words: str) -> tuple[int, str, str]:
    ran = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=180, check=False)
    return ran.returncode, ran.stdout, ran.stderr


def in_both(folder: Path, program: str) -> tuple[tuple[int, str, str], tuple[int, str, str]]:
    return run(folder, program, "a", "b c"), run(folder, "-c", RUN_HERE, program)


@pytest.mark.parametrize("text", END.values(), ids=END)
def test_it_ends_as_in_python(tmp_path: Path, text: str) -> None:
    """With the same exit code and the same words."""
    (tmp_path / "s.py").write_text(text)
    theirs, ours = in_both(tmp_path, "s.py")
    assert ours == theirs


@pytest.mark.parametrize("program", ["s.py", "s.pyc", "folder", "sub/../s.py", "link.py", "a b ü.py"])
def test_each_form_of_a_program_runs_as_in_python(tmp_path: Path, program: str) -> None:
    for folder in ("folder", "sub", "elsewhere"):
        (tmp_path / folder).mkdir()
    for name in ("s.py", "folder/__main__.py", "elsewhere/linked.py", "a b ü.py"):
        (tmp_path / name).write_text(SHOW)
    (tmp_path / "link.py").symlink_to("elsewhere/linked.py")
    compileall.compile_file(str(tmp_path / "s.py"), quiet=1, legacy=True)
    theirs, ours = in_both(tmp_path, program)
    assert theirs[0] == 0, theirs
    assert ours == theirs
