"""Warm starts: a run takes its agent from a server only where a cold start would give the same."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rollcall.coordinator.early_agent import read_start_options
from rollcall.linux import private_folder, process_state, warm_servers
from rollcall.transport import warm
from rollcall.worker import installation
from tests.rollcall_command import Runner, until
from tests.warm import own_runtime_folder, servers

HELLO = """\
import torch, torch.distributed as dist
dist.init_process_group("gloo")
t = torch.ones(1)
dist.all_reduce(t)
print("sum", int(t))
"""
WAITS = """\
import time, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
print("begun", flush=True)
time.sleep(600)
"""


def test_runs_of_one_server(rollcall: Runner, tmp_path: Path) -> None:
    """A run leaves a server behind if asked to. Later runs take their ranks from it, end like others and leave nothing
    behind. A server whose files have changed ends, and the run starts without it, which it says."""
    rollcall.script(HELLO)
    rollcall.script("import sys; sys.exit(3)", "fails.py")
    rollcall.script(WAITS, "waits.py")
    (tmp_path / "lib").mkdir()
    rollcall.env["PYTHONPATH"] = f"{rollcall.env.get('PYTHONPATH', '')}:{tmp_path / 'lib'}".lstrip(":")
    with own_runtime_folder(rollcall, tmp_path):
        rollcall.env["ROLLCALL_WARM"] = "1"
        ran = rollcall("run", "-n", 2, "script.py")
        assert (ran.code, ran.out, ran.err) == (0, "0-1 │ sum 2\n", "")
        assert until(lambda: len(servers(rollcall)) == 1)
        del rollcall.env["ROLLCALL_WARM"]
        assert rollcall("run", "-n", 2, "script.py") == ran
        assert rollcall("run", "-n", 2, "-m", "rollcall", "lab", "hello").code == 0  # it goes through the same launcher
        failed = rollcall("run", "-n", 2, "fails.py")
        assert (failed.code, [each["starts"] for each in servers(rollcall)]) == (3, [3])
        assert "exited with code 3" in failed.err
        _check_that_a_killed_launcher_ends_its_ranks(rollcall)
        assert "ready, until 30 minutes" in rollcall("warm").err  # a server for functions; that for runs is there
        assert rollcall("warm").err.count("ready already") == 1
        (tmp_path / "lib" / "torchvision.py").touch()  # as an installation does
        stale = rollcall("run", "-n", 2, "script.py")
        assert (stale.code, servers(rollcall)) == (0, [])
        assert "started without the warm server, because of" in stale.err
        assert "lib, which has changed since: the server has ended" in stale.err
        assert "for rollcall.spawn, pytest and rollcall lab" in (status := rollcall("warm", "--status").out)
        assert status.endswith(f"out of date: {tmp_path / 'lib'} has changed\n")
        rollcall("warm", "--stop")
        assert rollcall("warm", "--status").err == "rollcall: no warm server is running: `rollcall warm` starts one\n"


def _check_that_a_killed_launcher_ends_its_ranks(rollcall: Runner) -> None:
    process = rollcall.start("run", "-n", 2, "waits.py")
    assert process.stdout is not None
    assert process.stdout.readline() == "0-1 │ begun\n"
    process.kill()
    process.communicate()
    assert until(lambda: [each["running"] for each in servers(rollcall)] == [0])


# What decides.


def test_the_state_of_a_process_does_not_differ_from_itself() -> None:
    assert process_state.difference(process_state.current(), process_state.current()) == ""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"umask": "027"}, "the umask"),
        ({"ulimit -n": "64"}, "the resource limits"),
        ({"nice": "3"}, "the scheduling"),
        ({"trap": "USR1"}, "the ignored signals"),
    ],
)
def test_what_a_shell_can_change_is_noticed(change: dict[str, str], said: str) -> None:
    ((how, value),) = change.items()
    script = {"trap": f"trap '' {value}", "nice": f"renice -n {value} $$ >/dev/null"}.get(how, f"{how} {value}")
    code = "import json; from rollcall.linux import process_state; print(json.dumps(process_state.current()))"
    words = ["bash", "-c", f'{script}; "$0" -c "{code}"', sys.executable]
    other = json.loads(subprocess.run(words, capture_output=True, text=True, check=True, timeout=180).stdout)
    ours = {**process_state.current(), "environ": other["environ"]}
    assert process_state.difference(ours, other) == said


def state(**environ: str) -> dict[str, Any]:
    return {"environ": environ, "cwd": "/a"}


def test_variables_that_tell_where_a_terminal_is_may_differ() -> None:
    assert process_state.difference(state(A="1", PWD="/a"), state(A="1", PWD="/b", TMUX="x")) == ""
    assert process_state.difference(state(A="1"), state(A="2")) == "the variable A"
    assert process_state.difference(state(), state(B="")) == "the variable B"


def test_servers_of_other_pythons_are_not_spoken_of() -> None:
    """They are ready for other programs. One of this Python that does not fit is named, whichever answered last."""
    ours = process_state.current()
    theirs = {**ours, "the Python": ["/other/bin/python", "3.14"], "environ": {"PATH": "/other/bin"}}
    differs = process_state.difference(theirs, ours)
    assert warm_servers.why_cold([]) == warm_servers.why_cold([differs]) == ""
    assert "because of the variable A (" in warm_servers.why_cold(["the variable A", differs])


def test_an_empty_part_of_a_path_is_the_folder() -> None:
    here = state(LD_LIBRARY_PATH="/x:")
    assert process_state.difference(here, {**here, "cwd": "/b"}) == "the folder, to which LD_LIBRARY_PATH is relative"


def test_a_relative_pythonpath_belongs_to_its_folder() -> None:
    here, there = state(PYTHONPATH="src"), {**state(PYTHONPATH="src"), "cwd": "/b"}
    assert process_state.difference(here, there) == "the folder, to which PYTHONPATH is relative"
    assert process_state.difference(state(PYTHONPATH="/x"), {**state(PYTHONPATH="/x"), "cwd": "/b"}) == ""


def test_a_replaced_file_is_noticed(tmp_path: Path) -> None:
    """Also with the old time and size."""
    path = tmp_path / "module.py"
    path.write_text("one")
    before = {str(path): installation._stamp(str(path)), str(tmp_path / "none"): ()}
    assert installation.changed(before) == ""
    times = path.stat()
    path.write_text("two")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert installation.changed(before) == str(path)
    path.unlink()
    assert installation.changed(before) == str(path)


def test_a_folder_is_another_with_a_new_module_and_not_with_compiled_files(tmp_path: Path) -> None:
    """Python makes __pycache__ when a module of the folder is first imported, as by another program."""
    (tmp_path / "module.py").touch()
    before = {str(tmp_path): installation._stamp(str(tmp_path))}
    (tmp_path / "__pycache__").mkdir()
    assert installation.changed(before) == ""
    (tmp_path / "new.py").touch()
    assert installation.changed(before) == str(tmp_path)


def test_modules_and_libraries_of_this_process_are_watched() -> None:
    stamped = installation.stamps()
    assert {os.__file__, json.__file__, os.path.realpath(sys.executable)} <= stamped.keys()
    assert any("libc" in path for path in stamped)


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("-n 4 train.py --preload x", {"script": "train.py"}),
        ("--preload a --preload=b -n4 --no-record train.py", {"preload": ["a", "b"], "record": False}),
        ("--max_restarts 2 -m pkg.train", {"kind": "module", "script": "pkg.train"}),
        ("--no-python ls", {"kind": "command", "script": "ls"}),
    ],
)
def test_what_is_imported_is_known_before_the_command_line_is_read(typed: str, found: dict[str, object]) -> None:
    read = read_start_options(["rollcall", "run", *typed.split()], {})
    assert read is not None
    assert {name: read[name] for name in found} == found


@pytest.mark.parametrize(("typed", "environ"), [("-mn4 x", {}), ("x.py", {"PET_MODULE": "1"}), ("-n 4", {})])
def test_a_command_line_that_is_not_clear_starts_cold(typed: str, environ: dict[str, str]) -> None:
    assert read_start_options(["rollcall", "run", *typed.split()], environ) is None


def test_a_folder_that_others_can_open_is_not_used(tmp_path: Path) -> None:
    """Nor a link, which may lead anywhere."""
    ours, link = tmp_path / "ours", tmp_path / "link"
    ours.mkdir(mode=0o700)
    link.symlink_to(ours)
    fd = private_folder.opened(str(ours))
    assert fd is not None
    os.close(fd)
    assert private_folder.opened(str(link)) is None
    ours.chmod(0o750)
    assert private_folder.opened(str(ours)) is None


def test_the_socket_of_a_server_that_was_killed_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "rollcall").mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as gone:
        folder_fd = private_folder.opened(str(tmp_path / "rollcall"))
        assert folder_fd is not None
        gone.bind(private_folder.socket_path(folder_fd, "warm-1"))
        os.close(folder_fd)
    assert warm_servers.ask_all(warm_servers.RUNS, {"ask": "status"}) == []
    assert list((tmp_path / "rollcall").iterdir()) == []


def test_a_server_that_does_not_answer_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run starts without it."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(warm_servers, "_ANSWER_S", 0.2)
    folder_fd = private_folder.opened(private_folder.path(os.environ), make=True)
    assert folder_fd is not None
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(private_folder.socket_path(folder_fd, "warm-1"))
        silent.listen()
        assert warm.take({"preload": [], "record": True, "kind": "script", "script": "x.py"}) is None
    os.close(folder_fd)
