"""Each wrong word gets one sentence on stderr with what to do, exit code 2, and starts nothing."""

import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.explain.dump_files import Entry
from tests.explain.dump_files import write as write_dumps
from tests.report.rings import FakeOp
from tests.report.rings import write as write_rings
from tests.rollcall_command import Result, Runner

WRONG = {
    "a missing script": (["-n", "2", "missing.py"], ["no script missing.py", "check the path"]),
    "a module without -m": (["-n", "2", "my.trainer"], ["no script my.trainer", "did you mean -m my.trainer?"]),
    "a folder without a program": (["-n", "2", "empty"], ["empty is a folder without __main__.py"]),
    "a script that is not Python": (["-n", "2", "train.sh"], ["train.sh line 2 is not Python", "--no-python"]),
    "a binary": (["-n", "2", "binary"], ["binary", "is not Python", "--no-python"]),
    "no ranks": (["-n", "0", "ok.py"], ["-n 0 asks for 0 ranks", "use `-n"]),
    "far too many ranks": (["-n", "10000", "ok.py"], ["-n 10000", "1 to 4096"]),
    "ranks that are no number": (["-n", "many", "ok.py"], ["many is not understood", "auto"]),
    "gpu without a GPU": (["-n", "gpu", "ok.py"], ["torch sees no GPU here", "use a number"]),
    "ranks to show that are none": (["-n", "2", "--show", "x", "ok.py"], ["--show x does not name ranks"]),
    "a rank to show that is not there": (["-n", "2", "--show", "5", "ok.py"], ["--show names rank 5", "0 to 1"]),
    "streams that are none": (["-n", "2", "--tee", "9", "ok.py"], ["--tee 9 does not name streams"]),
    "a start nobody knows": (["-n", "2", "--start", "hot", "ok.py"], ["--start hot", "warm or fresh"]),
    "hosts without a master": (["--nnodes", "2", "ok.py"], ["needs --master-addr"]),
    "a host out of range": (
        ["--nnodes", "2", "--node-rank", "2", "--master-addr", "127.0.0.1", "ok.py"],
        ["--node-rank 2 is not among 2 hosts"],
    ),
    "hosts that are no number": (["--nnodes", "x", "ok.py"], ["--nnodes x is not a number of hosts"]),
    "a rendezvous of others": (["--rdzv-backend", "etcd", "ok.py"], ["--rdzv-backend etcd is not needed"]),
    "an endpoint without a number": (["--rdzv-endpoint", "a:b", "ok.py"], ["not of the form HOST:PORT"]),
    "a module and a command": (["-m", "--no-python", "ok.py"], ["exclude each other"]),
    "restarts below zero": (["-n", "2", "--max-restarts", "-1", "ok.py"], ["below zero"]),
}
# What the agent, or the run's folder, has to be asked.
WRONG_HERE = {
    "a log dir below a file": (["-n", "2", "--log-dir", "ok.py/logs", "ok.py"], ["cannot write to", "--log-dir"]),
    "a module to preload that is not there": (["-n", "2", "--preload", "nope", "ok.py"], ["--preload nope"]),
}


@pytest.fixture
def folder(rollcall: Runner) -> Runner:
    rollcall.script("print('ok')", name="ok.py")
    rollcall.script("#!/bin/sh\nif true; then echo hi; fi\n", name="train.sh")
    (rollcall.folder / "binary").write_bytes(b"\x7fELF\x00\x01")
    (rollcall.folder / "empty").mkdir()
    return rollcall


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.usefixtures("folder")
def test_one_sentence_and_exit_code_2(
    refused: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, case: str
) -> None:
    """The sentence names what was found and what to do; no run begins."""
    words, expected = WRONG[case]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # on a machine that has a GPU, too
    result = refused("run", *words)
    _check_sentence(result, expected)
    assert not (tmp_path / ".rollcall").exists()


@pytest.mark.parametrize("command", ["run", "explain"])
def test_a_folder_that_is_gone(
    refused: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str
) -> None:
    """The shell is still in it."""
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    _check_sentence(
        refused(command, "/somewhere/else.py"), ["the current folder has been removed", "change to another"]
    )


@pytest.mark.parametrize("case", WRONG_HERE)
def test_what_is_found_later_is_one_sentence_too(folder: Runner, case: str) -> None:
    """As of the whole command, and no rank ever runs."""
    words, expected = WRONG_HERE[case]
    _check_sentence(folder("run", *words), expected)


def _check_sentence(result: Result, expected: list[str]) -> None:
    said = [line for line in result.err.splitlines() if line]
    assert result.code == 2, result.err
    assert len(said) == 1, result.err
    assert said[0].startswith("rollcall: ")
    for part in expected:
        assert part in said[0]
    assert result.out == ""


def test_a_busy_port(folder: Runner) -> None:
    """A --master-port that somebody listens on is named."""
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        result = folder("run", "-n", 2, "--master-port", port, "ok.py")
    assert result.code == 2
    assert str(port) in result.err
    assert len(result.err.strip().splitlines()) == 1


def test_an_unknown_option(folder: Runner) -> None:
    """A typo in an option is shown as such."""
    result = folder("run", "--nproc", 2, "ok.py")
    assert result.code == 2
    assert "--nproc" in result.err


def test_a_host_that_never_comes(folder: Runner, free_port: int) -> None:
    """After the timeout the missing host is named, and how long was waited. What else agents find while they wait for
    each other is in agent/test_rendezvous.py."""
    result = folder(
        "run", "--nnodes", 3, "--node-rank", 0, "--master-addr", "127.0.0.1", "--master-port", free_port,
        "--rdzv-conf", "timeout=5", "-n", 2, "ok.py",
    )  # fmt: skip
    assert result.code == 1
    assert "after 5 s 2 of 3 hosts (node 1, 2) had not come" in result.err


def mixed_worlds(folder: Path) -> None:
    write_dumps(folder, {0: [Entry("all_reduce", 1, 100, 150)]}, world_size=2)
    write_dumps(folder, {1: [Entry("all_reduce", 1, 100, 150)]}, world_size=4)


def code_in_a_pickle(folder: Path) -> None:
    (folder / "nccl_trace_rank_0").write_bytes(b"\x80\x02cos\nsystem\nX\x05\x00\x00\x00false\x85R.")


def other_version(folder: Path) -> None:
    write_rings(folder / "run", [[FakeOp("all_reduce", 1, 100, 150)]])
    for path in sorted((folder / "run" / "rings" / "attempt-0").iterdir()):
        data = bytearray(path.read_bytes())
        data[8:12] = (99).to_bytes(4, "little")
        (folder / path.name).write_bytes(data)
    shutil.rmtree(folder / "run")


RECORDINGS: dict[str, tuple[Callable[[Path], None], str]] = {
    "an empty folder": (lambda folder: None, "neither the folder of a run, nor one of rings or of Flight Recorder"),
    "dumps of two jobs": (mixed_worlds, "these dumps are of more than one job"),
    "a pickle with code": (code_in_a_pickle, "it is not plain data: it names os.system"),
    "rings of another version": (other_version, "its format is version 99"),
}


@pytest.mark.parametrize("case", RECORDINGS)
@pytest.mark.parametrize("command", ["explain", "report", "export", "compare"])
def test_a_recording_that_cannot_be_explained_is_one_sentence(
    refused: Callable[..., Result], tmp_path: Path, case: str, command: str
) -> None:
    make, expected = RECORDINGS[case]
    folder = tmp_path / "recording"
    folder.mkdir()
    make(folder)
    more = {"export": ["--perfetto", str(tmp_path / "trace.json")], "compare": [str(folder)]}
    _check_sentence(refused(command, str(folder), *more.get(command, [])), [expected])
