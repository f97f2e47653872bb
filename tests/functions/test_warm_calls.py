"""Functions on ranks of a warm server: only where a cold start would give the same."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rollcall.functions import module_path
from rollcall.linux import warm_servers
from tests.rollcall_command import PROGRAMS, Runner, until
from tests.warm import servers, warm_server
from tests.worker.test_fidelity import facts, flat

INSPECTS = f"""\
import sys, rollcall

def inspect(rank, out):
    sys.path.append({str(PROGRAMS)!r})
    sys.argv[1:] = [out, "fork"]
    import inspect_everything
    inspect_everything.main()

if __name__ == "__main__":
    rollcall.spawn(inspect, 2, args=sys.argv[1:])
"""
WAITS = """\
import time, rollcall

def wait(rank):
    print("begun", rank, flush=True)
    time.sleep(600)

rollcall.spawn(wait, 2)
"""
TEST = """\
import os, pytest

@pytest.mark.ranks(2)
def test_it(world):
    assert "test_it" in os.environ["PYTEST_CURRENT_TEST"]
    assert world.size == 2
"""
# Between two starts of one program: names of the call, and how its server was started.
MAY_DIFFER = {
    "argv",  # of the fork server, with the number of a file
    "cmdline",
    "orig_argv",
    "fds",
    "environ.MASTER_PORT",
    "environ.TORCHELASTIC_RUN_ID",
    "environ.ROLLCALL_WARM",
    "environ.XDG_RUNTIME_DIR",
    "environ_in_c",
    "frames_below",  # three more of rollcall
    "modules_at_start",
    "parent_command",
}
OF_THE_SERVER = {"rollcall.functions.warm_server", "rollcall.functions.module_path", "rollcall.linux.warm_servers",
                 "rollcall.linux.private_folder", "rollcall.linux.process_state", "rollcall.worker.fork_safety",
                 "rollcall.worker.installation", "rollcall.worker.warm_server", "pkgutil"}  # fmt: skip


def python(rollcall: Runner, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *words], cwd=rollcall.folder, env=rollcall.env, capture_output=True, text=True, timeout=180
    )


def test_functions_take_ranks_of_a_warm_server(rollcall: Runner, tmp_path: Path) -> None:
    """Those see what ranks of a cold start see. pytest and the lab take theirs there, too. Nothing is left of a caller
    that is killed. A caller for whom a module would be another one starts cold, and says why."""
    rollcall.env["RES_OPTIONS"] = "attempts:2"  # or what is seen depends on the speed of a name server
    rollcall.script(INSPECTS, "inspects.py")
    rollcall.script(WAITS, "waits.py")
    rollcall.script(TEST, "test_it.py")
    for name in ("cold", "warm"):
        (tmp_path / name).mkdir()
    assert python(rollcall, "inspects.py", str(tmp_path / "cold" / "facts")).stderr == ""
    with warm_server(rollcall, tmp_path):
        assert python(rollcall, "inspects.py", str(tmp_path / "warm" / "facts")).stderr == ""
        assert "1 passed" in python(rollcall, "-m", "pytest", "-p", "no:cacheprovider", "test_it.py").stdout
        assert rollcall("lab", "hello").code == 0
        _check_that_a_killed_caller_leaves_nothing(rollcall)
        assert [each["starts"] for each in servers(rollcall, warm_servers.CALLS)] == [4]
        rollcall.script("raise ImportError", "typing_extensions.py")
        assert "because of" in (said := python(rollcall, "waits.py").stderr), said
        assert "typing_extensions.py, a module of that name" in said
    for a, b in zip(facts(tmp_path / "cold"), facts(tmp_path / "warm"), strict=True):
        assert set(a["modules_at_start"]) ^ set(b["modules_at_start"]) <= OF_THE_SERVER
        a, b = flat(a), flat(b)
        differing = {key for key in a.keys() | b.keys() if a.get(key) != b.get(key)}
        assert {key: (a.get(key), b.get(key)) for key in differing - MAY_DIFFER} == {}


def _check_that_a_killed_caller_leaves_nothing(rollcall: Runner) -> None:
    process = subprocess.Popen(
        [sys.executable, "waits.py"], cwd=rollcall.folder, env=rollcall.env, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("begun")
    process.kill()
    process.communicate()
    assert until(lambda: [each["running"] for each in servers(rollcall, warm_servers.CALLS)] == [0])


def test_what_torch_imports_reads_nothing_of_pytest() -> None:
    """So a server that was started outside of pytest has imported the same."""
    script = """\
import os, sys, torch.distributed
files = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
files = [file for file in files if file.endswith(".py") and os.path.isabs(file)]
print(len(files) > 500, [file for file in files if b"PYTEST_" in open(file, "rb").read()])
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=180)
    assert ran.stdout == "True []\n", ran.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own").mkdir()
    return tmp_path / "own"


@pytest.mark.parametrize(
    "path",
    ["torch.py", "torch/__init__.py", "missing/x.py", "torch.abi3.so", "a.egg-info/entry_points.txt"],
)
def test_a_folder_in_which_a_name_means_another_module_is_noticed(folder: Path, path: str) -> None:
    """Also one for a name that was looked for in vain, and a plugin of torch's."""
    (folder / path).parent.mkdir(exist_ok=True)
    (folder / path).write_text("[torch.backends]\n")
    found = module_path.difference({"torch", "missing"}, ["/lib"], [str(folder), "/lib"])
    assert found.startswith(str(folder / Path(path).parts[0]))


@pytest.mark.parametrize("path", ["train.py", "torch", "torch/notes.txt", "torch.txt", "b.egg-info/entry_points.txt"])
def test_other_files_make_no_difference(folder: Path, path: str) -> None:
    """Nor does a folder that is no package, for a name that has one: `torch` is loaded here."""
    (folder / path).parent.mkdir(exist_ok=True)
    (folder / path).write_text("[console_scripts]\n")
    assert torch.__name__ in sys.modules
    assert module_path.difference({"torch"}, ["/lib"], [str(folder), "/nowhere", "/lib"]) == ""


def test_an_archive_and_another_order_are_noticed(folder: Path) -> None:
    (folder / "modules.zip").touch()
    archive = str(folder / "modules.zip")
    assert module_path.difference({"torch"}, ["/lib"], [archive, "/lib"]) == archive
    assert module_path.difference(set(), ["/a", "/b"], ["/b", "/a"]) == "the order of sys.path"


def test_each_name_that_is_looked_for_is_noted() -> None:
    with module_path.noting_names() as names, pytest.raises(ImportError):
        __import__("not_there.at_all")
    assert {"not_there", "sys", "sitecustomize"} <= names
