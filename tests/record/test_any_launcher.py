"""Ranks that another launcher starts are recorded, without a change to the program."""

import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import torch.distributed as dist

import rollcall as package
from rollcall import find_free_port
from rollcall.explain.loading.load import load
from rollcall.record import autostart, ring_format
from rollcall.record.autostart import find_another_run, find_place
from rollcall.record.ring import Ring
from rollcall.runs import recorded_attempts
from tests.record.rings_of import ops_of
from tests.rollcall_command import Result, Runner
from tests.said import said
from tests.torch_output import without_torchs

SUM = """\
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(4)
dist.all_reduce(total)
print("sum", int(total[0]))
dist.destroy_process_group()
"""
SPAWNED = """\
import os, rollcall, torch, torch.distributed as dist, torch.multiprocessing as mp
def work(rank, port):
    os.mkdir(f"of-{rank}")
    os.chdir(f"of-{rank}")
    try:
        rollcall.init()
    except rollcall.UsageError as error:
        assert "pass world_size" in str(error)
    with rollcall.init(world_size=2, master_port=port, timeout_s=120) as world:
        assert (world.rank, world.info.local_rank) == (rank, rank)
        dist.all_reduce(torch.ones(1))
if __name__ == "__main__":
    mp.spawn(work, (int(os.environ["PORT"]),), nprocs=2)
"""
OPS = ["init", "all_reduce", "destroy", "exit"]
TORCHRUN = str(Path(sys.executable).with_name("torchrun"))


def init(backend: str = "", timeout: float = 0, world_size: int = -1, rank: int = -1) -> None:
    """Takes what torch's takes."""


@pytest.mark.parametrize(
    ("args", "kwargs", "environ", "place"),
    [
        ((), {}, {"RANK": "1", "WORLD_SIZE": "4"}, (1, 4)),
        (("gloo",), {"rank": 2, "world_size": 3}, {"RANK": "1", "WORLD_SIZE": "4"}, (2, 3)),
        (("gloo", 30, 2, 0), {}, {}, (0, 2)),
        ((), {}, {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8"}, (3, 8)),
        ((), {}, {"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, (0, 2)),
        ((), {}, {"RANK": "5", "WORLD_SIZE": "2"}, None),
        ((), {"no_such": 1}, {}, None),
        ((), {}, {}, None),
    ],
)
def test_the_place_in_the_world(
    args: tuple[object, ...], kwargs: dict[str, object], environ: dict[str, str], place: tuple[int, int] | None
) -> None:
    """Arguments count before variables; what cannot be is not believed."""
    assert find_place(init, args, kwargs, environ) == place


def recorded(folder: Path, attempt: int = 0) -> dict[int, list[str]]:
    """By rank: the names of its ops."""
    rings = sorted((folder / "rings" / f"attempt-{attempt}").glob("rank-*.ring"))
    return {int(ring.stem.removeprefix("rank-")): ops_of(ring) for ring in rings}


def python(runner: Runner, *words: object, **env: str) -> Result:
    ran = subprocess.run(
        [str(word) for word in words],
        cwd=runner.folder,
        env={**runner.env, **env},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    return Result(ran.returncode, without_torchs(ran.stdout), ran.stderr)


def test_rollcall_record_records_the_ranks_of_torchrun(rollcall: Runner) -> None:
    """Their ops are in a run of this folder, which says what was typed and how it ended."""
    script = rollcall.script(SUM)
    ran = rollcall("record", "--", TORCHRUN, "--nproc-per-node", 2, script)
    assert ran.code == 0, ran.err
    assert "2 ranks recorded in .rollcall/runs/" in ran.err
    assert recorded(rollcall.latest()) == {0: OPS, 1: OPS}
    facts = json.loads((rollcall.latest() / "run.json").read_text())
    assert (facts["command"][0], facts["outcome"], facts["exit_code"]) == (TORCHRUN, "ok", 0)
    assert "no finding" in rollcall("explain").out


def test_a_command_that_fails_is_explained_and_keeps_its_exit_code(rollcall: Runner) -> None:
    script = rollcall.script(SUM.replace("dist.all_reduce(total)", "raise ValueError"))
    rollcall.env |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_free_port())}
    ran = rollcall("record", "--", sys.executable, script)
    assert ran.code == 1
    assert "verdict: rank-failed — look at rank 0" in ran.err


def test_a_variable_in_a_job_script_does_the_same(rollcall: Runner) -> None:
    """Also for the children of mp.spawn, each of which goes to a folder of its own; each restart is an attempt of its
    own. rollcall.init needs no rank there; without a world size the error says what to pass."""
    script = rollcall.script(SPAWNED)
    ran = python(rollcall, sys.executable, script, ROLLCALL_RECORD="recording", PORT=str(find_free_port()))
    assert ran.code == 0, ran.err
    folder = rollcall.folder / "recording"
    assert recorded(folder) == {0: OPS, 1: OPS}
    assert recorded_attempts(folder) == [0]


RAISES = """\
import os, sys, torch, torch.distributed as dist, torch.multiprocessing as mp
def work(rank, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    if rank == 1:
        raise ValueError("enough")
    dist.all_reduce(torch.ones(1))
if __name__ == "__main__":
    if "spawn" in sys.argv:
        mp.spawn(work, (os.path.abspath("store"),), nprocs=2)
    else:
        ranks = [mp.get_context("fork").Process(target=work, args=(i, os.path.abspath("store"))) for i in range(2)]
        for rank in ranks:
            rank.start()
        ranks[1].join()
        ranks[0].kill()
        sys.exit(ranks[1].exitcode)
"""


@pytest.mark.parametrize("how", ["spawn", "fork"])
def test_an_error_in_a_child_is_named(rollcall: Runner, how: str) -> None:
    """multiprocessing catches it, and mp.spawn before that: nobody calls sys.excepthook."""
    ran = rollcall("record", "--", sys.executable, rollcall.script(RAISES), how)
    assert ran.code == 1, ran.err
    assert "verdict: rank-failed — look at rank 1\n  rank 1 failed at script.py:5: ValueError: enough" in ran.err


def a_ring(folder: Path, rank: int, world_size: int) -> Path:
    path = folder / "rings" / "attempt-0" / f"rank-{rank}.ring"
    Ring(path, rank=rank, world_size=world_size, attempt=0, host="here", size_bytes=ring_format.RECORDS_AT)
    return path


def test_a_second_run_into_one_folder_overwrites_nothing(rollcall: Runner) -> None:
    script = rollcall.script(SUM)
    env = {"ROLLCALL_RECORD": "recording", "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    ring = a_ring(rollcall.folder / "recording", rank=0, world_size=1)
    before = ring.stat().st_mtime_ns
    second = python(rollcall, sys.executable, script, **env, MASTER_PORT=str(find_free_port()))
    assert (second.code, second.out) == (0, "sum 1\n")
    assert f"rank 0 is not recorded: {ring.parents[2]} has a recording of this rank already" in second.err
    assert ring.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("job", "environ", "sentence"),
    [
        ({"SLURM_JOB_ID": "41"}, {"SLURM_JOB_ID": "41"}, ""),
        ({"SLURM_JOB_ID": "41"}, {"SLURM_JOB_ID": "42"}, "(SLURM_JOB_ID 41, and this is SLURM_JOB_ID 42)"),
        ({}, {"TORCHELASTIC_RUN_ID": "x"}, "(one without a job number, and this is TORCHELASTIC_RUN_ID x)"),
        (None, {"SLURM_JOB_ID": "42"}, ""),  # `rollcall record` has made the folder
    ],
)
def test_a_folder_belongs_to_one_job(tmp_path: Path, job: object, environ: dict[str, str], sentence: str) -> None:
    """As the launcher's variables tell."""
    (tmp_path / "run.json").write_text(json.dumps({} if job is None else {"job": job}))
    assert find_another_run(tmp_path, 2, 0, environ) == (f"another run {sentence}" if sentence else "")


def test_a_folder_belongs_to_one_world(tmp_path: Path) -> None:
    """A rank that the recorded run does not have would be taken for one of its ranks."""
    assert find_another_run(tmp_path, 4, 0, {}) == ""
    a_ring(tmp_path, rank=1, world_size=2)
    assert find_another_run(tmp_path, 2, 0, {}) == ""
    assert find_another_run(tmp_path, 4, 1, {}) == ""  # another attempt may be smaller or larger
    assert find_another_run(tmp_path, 4, 0, {}) == "another run (of 2 ranks, and this is one of 4)"


def test_a_ring_of_another_run_is_left_out(tmp_path: Path) -> None:
    """Recorded by a version that did not check, or copied there."""
    for rank, world_size in ((0, 2), (1, 2), (2, 4)):
        a_ring(tmp_path, rank, world_size)
    run = load(tmp_path)
    assert (sorted(run.ranks), run.world_size) == ([0, 1], 2)
    assert run.problems == (
        "rank-2.ring: it is of a run of 4 ranks, and not of this one, which has 2; record each run into a folder of its"
        " own",
    )


def test_a_folder_that_cannot_be_written_ends_the_recording_not_the_run(rollcall: Runner) -> None:
    script = rollcall.script(SUM)
    env = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_free_port())}
    ran = python(rollcall, sys.executable, script, **env, ROLLCALL_RECORD="/proc/nowhere")
    assert (ran.code, ran.out) == (0, "sum 1\n")
    assert "rank 0 is not recorded: cannot write to /proc/nowhere" in ran.err


def test_what_is_wrong_is_said_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A program may form groups again and again, as a test suite does."""
    monkeypatch.setenv("ROLLCALL_RECORD", "/proc/nowhere")
    for _ in range(3):
        assert not autostart.begin(dist.init_process_group, (), {"rank": 0, "world_size": 7})
    assert capsys.readouterr().err.count("cannot write to /proc/nowhere") == 1


def test_a_python_without_a_group_writes_nothing(rollcall: Runner) -> None:
    """And imports nothing of rollcall."""
    asks = "import sys; print([name for name in sys.modules if name.startswith('rollcall.')])"
    ran = python(rollcall, sys.executable, "-c", asks, ROLLCALL_RECORD="recording")
    assert ran.out == "[]\n"
    assert not (rollcall.folder / "recording").exists()


OWN_MODULE = """\
import sys
from importlib.machinery import PathFinder
class Imports(PathFinder):
    @classmethod
    def find_spec(cls, name, *args):
        if name == "torch.distributed.distributed_c10d":
            print("asked")
            return super().find_spec(name, *args)
sys.meta_path.append(Imports)
sys.meta_path.remove(PathFinder)
sys.meta_path.append(PathFinder)
import torch.distributed as dist
print("once", __name__)
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
"""


def test_a_program_that_has_our_name_runs_once(rollcall: Runner) -> None:
    """Its `import rollcall` means its own file, which the recorder does not import in place of itself. What the program
    has added to Python's imports, such as checks of types, is asked as ever."""
    rollcall.script(OWN_MODULE, "rollcall.py")
    ran = python(rollcall, sys.executable, "rollcall.py", ROLLCALL_RECORD="recording")
    assert (ran.code, ran.out) == (0, "asked\nonce __main__\n")
    assert "its `import rollcall` finds" in ran.err
    assert not (rollcall.folder / "recording").exists()


def test_a_relative_folder_is_meant_from_where_the_job_is_started(rollcall: Runner) -> None:
    """Its processes may go elsewhere before they start others."""
    (rollcall.folder / "elsewhere").mkdir()
    asks = "import os; print(os.environ['ROLLCALL_RECORD'])"
    starts = f"import os, sys; os.chdir('elsewhere'); os.execv(sys.executable, [sys.executable, '-c', {asks!r}])"
    asked = [python(rollcall, sys.executable, "-c", starts, ROLLCALL_RECORD=value).out for value in ("recording", "1")]
    assert asked == [f"{rollcall.folder / 'recording'}\n", "1\n"]


def test_where_nothing_was_recorded_it_is_said(rollcall: Runner) -> None:
    ran = rollcall("record", "--", "true")
    assert ran.code == 0
    assert "nothing was recorded in .rollcall/runs/" in ran.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--", "no-such-command"), "there is no command no-such-command"),
        (("--out", ".", "--", "true"), ". exists already"),
        (("--out", "/proc/x", "--", "true"), "cannot write to /proc/x"),
    ],
)
def test_bad_input_is_one_sentence(rollcall: Runner, words: tuple[str, ...], sentence: str) -> None:
    ran = rollcall("record", *words)
    assert ran.code == 2
    assert sentence in ran.err
    assert len(ran.err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "options", [("-n", 1), ("-n", 2, "--start", "fresh"), ("-n", 1, "--no-python", sys.executable)]
)
def test_ranks_in_fresh_interpreters_are_recorded(rollcall: Runner, options: tuple[object, ...]) -> None:
    """One rank alone, --start fresh, any command; a word with a space in it stays one word. What Python says of the
    script, it says once."""
    rollcall.script(f"{SUM}assert 1 is 1\n", "the script.py")
    ran = rollcall("run", *options, "the script.py")
    assert ran.code == 0, ran.err
    ranks = 1 if 1 in options else 2
    assert 1 <= (ran.out + ran.err).count("SyntaxWarning") <= ranks
    assert recorded(rollcall.latest()) == dict.fromkeys(range(ranks), OPS)


HANGS = """\
import torch, torch.distributed as dist
import torch.multiprocessing as mp
import os, sys

def receive(rank, options):
    dist.init_process_group("gloo", **options)
    dist.recv(torch.ones(1), src=1 - dist.get_rank())

def start(rank, store):
    receive(rank, {"init_method": f"file://{store}", "rank": rank, "world_size": 2})

if __name__ == "__main__":
    if "spawn" in sys.argv:
        mp.spawn(start, (os.path.abspath("store"),), nprocs=2)
    else:
        receive(0, {})
"""
HANG_OPTIONS = ("--hang-after", 2, "--on-hang", "stop", "--grace", 0.2)


@pytest.mark.parametrize(
    "words", [("-n", 1, "script.py", "spawn"), ("-n", 2, "--no-python", "./train.sh")], ids=["spawned", "command"]
)
def test_a_hang_of_children_is_noticed(rollcall: Runner, words: tuple[object, ...]) -> None:
    """Ranks that the processes of the launcher have started: children of mp.spawn, the Python of a shell script."""
    rollcall.script(HANGS)
    rollcall.script(f"#!/bin/sh\n{sys.executable} script.py\n", "train.sh").chmod(0o755)
    at = words.index("--no-python") if "--no-python" in words else 2
    ran = rollcall("run", *words[:at], *HANG_OPTIONS, *words[at:])
    assert ran.code == 124, ran.err
    assert "verdict: p2p-deadlock" in ran.err
    assert "ranks 0-1: script.py:7 in receive" in ran.err


def test_hosts_that_are_started_by_hand_are_recorded(rollcall: Runner) -> None:
    """One rank each. Each launcher has the ring of its own rank, and reads those of the others on a shared disk when
    all ranks hang."""
    rollcall.script(HANGS)
    port = find_free_port()
    options = ("--nnodes", 2, "-n", 1, "--master-addr", "127.0.0.1", "--master-port", port, *HANG_OPTIONS)
    launchers = [rollcall.start("run", "--node-rank", node, *options, "script.py") for node in (0, 1)]
    ran = [(launcher.communicate(timeout=180)[1], launcher.returncode) for launcher in launchers]
    # Who notices it first ends the run on both. The other may notice it at the same time, and sees a rank that ends.
    noticed = [told for told, code in ran if code == 124]
    assert any("verdict: p2p-deadlock" in told for told in noticed), ran
    assert all("ranks 0-1: script.py:7 in receive" in told for told in noticed), ran
    folders = [path for path in (rollcall.folder / ".rollcall/runs").iterdir() if not path.is_symlink()]
    assert sorted(rank for folder in folders for rank in recorded(folder)) == [0, 1]


def test_a_python_that_only_imports_rollcall_says_that_fresh_interpreters_are_not_recorded(rollcall: Runner) -> None:
    """By PYTHONPATH, without an installation: Python then reads no .pth file of ours."""
    bare = rollcall.folder / "bare"
    venv.create(bare, symlinks=True)
    installed = Path(sys.prefix, "lib", f"python{sys.version_info.major}.{sys.version_info.minor}", "site-packages")
    next(bare.glob("lib/python*/site-packages")).joinpath("others.pth").write_text(f"{installed}\n")
    rollcall.script("print('ran')\n")
    ran = subprocess.run(
        [bare / "bin" / "python", "-m", "rollcall", "run", "-n", "1", "script.py"],
        cwd=rollcall.folder,
        env={**rollcall.env, "PYTHONPATH": str(Path(str(package.__file__)).parents[1])},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert (ran.returncode, said(ran.stdout)) == (0, {"ran": [0]})
    assert ran.stderr.startswith("rollcall: ranks are not recorded: this Python imports rollcall but has not installed")
