"""A rank of `rollcall run` sees what a rank of torchrun sees."""

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.rollcall_command import PROGRAMS, Runner
from tests.warm import warm_server

# All that may differ, and why. docs/fidelity.md says the same to the user.
DIFFERENT = {
    "environ.MASTER_ADDR": "127.0.0.1, not localhost: no name to look up",
    "environ.MASTER_PORT": "any free port",
    "environ.TORCHELASTIC_RUN_ID": "any name",
    "environ.TORCHELASTIC_ERROR_FILE": "in the run's folder",
    "environ.TORCHELASTIC_SIGNALS_TO_HANDLE": "torchrun's word to itself",
    "environ.ROLLCALL_RUN": "the run's folder",
    "environ.ROLLCALL_RECORD": "in fresh interpreters: rollcall.init is to record",
    "environ.ROLLCALL_LINK": "in fresh interpreters: the way to the launcher's terminal",
    "environ._": "the shell's note of the command",
    "environ_in_c": "the same again",
    "fds": "a warm rank has three more files open: its recording",
    "frames_below": "a warm rank has frames of rollcall below the script's, as python -m has runpy's",
    "modules_at_start": "a warm rank has more modules loaded already",
    "parent_command": "another parent",
}


@pytest.fixture
def rollcall(rollcall: Runner) -> Runner:
    """Where a name server is slow, as on a busy machine, ranks are told not to wait for it, unless this is set."""
    rollcall.env["RES_OPTIONS"] = "attempts:2"
    return rollcall


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        # addresses of objects differ in any two processes
        return {prefix: re.sub(r"0x[0-9a-f]+", "0x…", json.dumps(value))}
    return {k: v for key, each in value.items() for k, v in flat(each, f"{prefix}.{key}" if prefix else key).items()}


def facts(folder: Path) -> list[dict[str, Any]]:
    """What the two ranks saw, with the name of their own folder taken out."""
    return [json.loads((folder / f"facts.{rank}").read_text().replace(str(folder), "FOLDER")) for rank in range(2)]


def last_words(text: str) -> Counter[str]:
    return Counter(re.findall("script ended|thread ended|global deleted", text))


# The words, the folder, and how data loaders start their workers: each worker that is not forked imports torch anew.
PROGRAM = {
    "path": ([str(PROGRAMS / "inspect_everything.py")], None, "fork,forkserver"),
    "module": (["-m", "inspect_everything"], PROGRAMS, "spawn"),
}
TORCHRUN = ["torch.distributed.run", "--nproc-per-node", "2"]
RUN = ["rollcall", "run", "-n", "2"]


def inspect(launcher: list[str], how: str, folder: Path, env: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    words, cwd, methods = PROGRAM[how]
    folder.mkdir()
    command = [sys.executable, "-m", *launcher, *words, str(folder / "facts"), methods]
    ran = subprocess.run(
        command, cwd=cwd or folder, env=env, input="some input\n", capture_output=True, text=True, timeout=180
    )
    assert (folder / "facts.1").exists(), ran.stderr
    return ran


def compare(theirs_at: Path, them: "subprocess.CompletedProcess[str]", ours_at: Path, run: Path) -> None:
    """A rank of torchrun and one of ours saw the same, but for the listed things, and their last words are the same."""
    theirs, ours = facts(theirs_at), facts(ours_at)
    assert sorted(f.pop("stdin") for f in theirs) == sorted(f.pop("stdin") for f in ours)  # whoever reads it first
    for a, b in zip(map(flat, theirs), map(flat, ours), strict=True):
        differing = {key for key in a.keys() | b.keys() if a.get(key) != b.get(key)}
        assert {key: (a.get(key), b.get(key)) for key in differing - DIFFERENT.keys()} == {}
    assert set(theirs[0]["modules_at_start"]) <= set(ours[0]["modules_at_start"])
    logs = "".join(log.read_text() for log in run.glob("logs/attempt-0/*.log"))
    assert last_words(logs) == last_words(them.stdout)


def test_a_module_sees_what_it_sees_under_torchrun(rollcall: Runner, tmp_path: Path) -> None:
    """One long inspection under both launchers differs in the listed things alone."""
    theirs_at, ours_at = tmp_path / "theirs", tmp_path / "ours"
    them = inspect(TORCHRUN, "module", theirs_at, rollcall.env)
    us = inspect(RUN, "module", ours_at, rollcall.env)
    assert us.returncode == 7, us.stderr
    compare(theirs_at, them, ours_at, rollcall.latest())


# Between a cold and a warm start of rollcall itself: what differs between any two runs, and nothing else.
OF_THE_TEST = {"ROLLCALL_WARM", "XDG_RUNTIME_DIR"}  # by which it starts cold, and finds its server
OF_ONE_RUN = {
    "environ.MASTER_PORT",
    "environ.TORCHELASTIC_RUN_ID",
    "environ.TORCHELASTIC_ERROR_FILE",
    "environ.ROLLCALL_RUN",
    *(f"environ.{name}" for name in OF_THE_TEST),
    "environ_in_c",
    "fds",  # a rank of a warm start may have some more files open
    "frames_below",  # three more of rollcall
    "modules_at_start",
    "parent_command",
}
OF_THE_SERVER = {
    "rollcall.agent.warm",
    "rollcall.agent.warm.run",
    "rollcall.agent.warm.server",
    "rollcall.linux.warm_servers",
    "rollcall.linux.private_folder",
    "rollcall.linux.process_state",
    "rollcall.worker.installation",
    "rollcall.worker.warm_server",
}


def test_a_script_sees_what_it_sees_under_torchrun(rollcall: Runner, tmp_path: Path) -> None:
    """In forked ranks, in fresh interpreters, and in ranks of a warm server. Those of a warm server and of a cold start
    see the same in all that the inspection knows, but for names of the run itself and modules of the server."""
    theirs_at, cold_at, fresh_at, warm_at = (tmp_path / name for name in ("theirs", "cold", "fresh", "warm"))
    them = inspect(TORCHRUN, "path", theirs_at, rollcall.env)
    for start, ours_at in (("warm", cold_at), ("fresh", fresh_at)):
        us = inspect([*RUN, "--start", start], "path", ours_at, rollcall.env)
        assert us.returncode == 7, us.stderr
        compare(theirs_at, them, ours_at, rollcall.latest())
    with warm_server(rollcall, tmp_path) as starts:
        us = inspect([*RUN, "--start", "warm"], "path", warm_at, rollcall.env)
        assert (starts(), us.returncode) == (1, 7), us.stderr
    for a, b in zip(facts(cold_at), facts(warm_at), strict=True):
        assert set(b["modules_at_start"]) - set(a["modules_at_start"]) <= OF_THE_SERVER
        assert set(a["modules_at_start"]) <= set(b["modules_at_start"])
        assert names(a["environ_in_c"]) ^ names(b["environ_in_c"]) <= OF_THE_TEST
    pairs = zip(map(flat, facts(cold_at)), map(flat, facts(warm_at)), strict=True)
    for a, b in pairs:
        differing = {key for key in a.keys() | b.keys() if a.get(key) != b.get(key)}
        assert {key: (a.get(key), b.get(key)) for key in differing - OF_ONE_RUN - {"stdin"}} == {}


def names(variables: list[str]) -> set[str]:
    return {each.partition("=")[0] for each in variables}
