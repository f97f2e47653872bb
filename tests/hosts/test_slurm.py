"""Inside a real SLURM allocation."""

import json
import subprocess
import sys

import pytest

from rollcall.errors import UsageError
from rollcall.protocol.hosts import Host
from rollcall.transport import slurm as way
from tests.cluster.slurm import Slurm
from tests.rollcall_command import Result, Runner
from tests.said import said

from .conftest import SUM, lines_of

COUNT = """\
import torch, torch.distributed as dist
dist.init_process_group('gloo')
total = torch.ones(1)
dist.all_reduce(total)
print(int(total.item()), flush=True)
"""


PLACED_BY_SLURM = """\
import os, torch, torch.distributed as dist
rank, size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
dist.init_process_group("gloo", f"file://{os.getcwd()}/meet", rank=rank, world_size=size)
total = torch.ones(1)
dist.all_reduce(total)
print(int(total.item()), flush=True)
dist.destroy_process_group()
"""


def run_in(rollcall: Runner, slurm: Slurm, before: list[str], *words: object, **env: str) -> Result:
    ran = subprocess.run(
        [*before, sys.executable, "-m", "rollcall", *map(str, words)],
        cwd=rollcall.folder,
        env={**rollcall.env, **slurm.env, **env},
        capture_output=True,
        text=True,
        timeout=180,
    )
    return Result(ran.returncode, ran.stdout, ran.stderr)


def test_a_plain_run_uses_all_of_the_allocation(rollcall: Runner, slurm: Slurm) -> None:
    """Nodes and tasks as SLURM has placed them; no ssh is needed."""
    rollcall.script(SUM)
    before = ["salloc", "--quiet", "--nodes=3", "--ntasks=4", "--distribution=block"]
    ran = run_in(rollcall, slurm, before, "run", "script.py", ROLLCALL_SSH="false")
    assert sorted({line.split()[1] for line in lines_of(ran.out)}) == ["h1", "h2", "h3"], ran.err
    assert [line.split()[4] for line in lines_of(ran.out)] == ["4"] * 4
    assert ran.code == 0


def test_srun_may_start_rollcall_itself(rollcall: Runner, slurm: Slurm) -> None:
    """One `rollcall run` per node, as people start torchrun: they find each other by the step's variables."""
    rollcall.script(COUNT)
    before = ["salloc", "--quiet", "--nodes=2", "srun", "--ntasks-per-node=1", "--ntasks=2"]
    ran = run_in(rollcall, slurm, before, "run", "-n", 2, "script.py")
    assert ran.code == 0, ran.err
    assert said(ran.out) == {"4": [0, 1, 2, 3]}


def test_ranks_that_srun_starts_are_recorded(rollcall: Runner, slurm: Slurm) -> None:
    """They find their places in SLURM's variables, as programs do that know nothing of rollcall."""
    rollcall.script(PLACED_BY_SLURM)
    before = ["salloc", "--quiet", "--nodes=1", "--ntasks=3"]
    command = ["srun", "--ntasks=3", sys.executable, "script.py"]
    recorded = run_in(rollcall, slurm, before, "record", "--out", "recorded", "--", *command)
    assert (recorded.code, recorded.out.split()) == (0, ["3", "3", "3"]), recorded.err
    assert "3 ranks recorded in recorded" in recorded.err
    explained = json.loads(rollcall("explain", "--json", "recorded").out)
    assert (explained["outcome"], explained["findings"]) == ("ok", [])


def test_several_tasks_per_node_are_refused(rollcall: Runner, slurm: Slurm) -> None:
    """`srun -n 4 rollcall run` would start agents on top of each other: the sentence says what to do."""
    rollcall.script("print('never')")
    before = ["salloc", "--quiet", "--nodes=1", "--ntasks=2", "srun", "--ntasks=2"]
    ran = run_in(rollcall, slurm, before, "run", "-n", 1, "script.py")
    assert ran.code == 2
    assert "--ntasks-per-node=1" in ran.err
    assert "never" not in ran.out


@pytest.mark.parametrize(
    ("environ", "slots", "hosts"),
    [
        ({"SLURM_JOB_CPUS_PER_NODE": "8(x2)"}, None, [8, 8]),
        ({"SLURM_JOB_CPUS_PER_NODE": "8(x2)", "SLURM_NTASKS": "3", "SLURM_TASKS_PER_NODE": "2,1"}, None, [2, 1]),
        ({"SLURM_JOB_CPUS_PER_NODE": "8(x2)", "SLURM_GPUS_ON_NODE": "4"}, None, [4, 4]),
        ({"SLURM_JOB_CPUS_PER_NODE": "8(x2)", "SLURM_GPUS_PER_NODE": "a100:2"}, None, [2, 2]),
        ({"SLURM_JOB_CPUS_PER_NODE": "8(x2)"}, 3, [3, 3]),
    ],
)
def test_slots_are_what_was_allocated(environ: dict[str, str], slots: int | None, hosts: list[int]) -> None:
    """-n; else a rank per GPU; else per task, where tasks were asked for; else per CPU."""
    found = way.hosts({"SLURM_JOB_NODELIST": "n[1-2]", **environ}, slots)
    assert found == tuple(Host(f"n{i}", n) for i, n in enumerate(hosts, 1))


def test_counts_that_do_not_fit_are_refused() -> None:
    """One sentence, with the variable and its value."""
    with pytest.raises(UsageError, match=r"SLURM_JOB_CPUS_PER_NODE is 8, but the job has 2 nodes"):
        way.hosts({"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_CPUS_PER_NODE": "8"}, None)


def test_a_heterogeneous_job_is_refused() -> None:
    with pytest.raises(UsageError, match="a heterogeneous job of 2 components"):
        way.hosts({"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_HET_SIZE": "2"}, 1)


def test_each_task_of_an_array_is_a_run(rollcall: Runner, slurm: Slurm) -> None:
    """Two tasks at the same time, each with its own node, ranks and folder of the run."""
    rollcall.script(COUNT)
    wrapped = f"{sys.executable} -m rollcall run -n 2 script.py"
    words = ["sbatch", "--wait", "--array=0-1", "--nodes=1", "--output=task-%a.out", f"--wrap={wrapped}"]
    options = {"cwd": rollcall.folder, "env": {**rollcall.env, **slurm.env}, "timeout": 180}
    slurm.run(words, **options, check=False)
    outputs = [(rollcall.folder / f"task-{task}.out").read_text() for task in range(2)]
    assert outputs == ["0-1 │ 2\n"] * 2
    assert len([run for run in (rollcall.folder / ".rollcall/runs").iterdir() if not run.is_symlink()]) == 2


def test_options_for_srun_are_passed_on(rollcall: Runner, slurm: Slurm) -> None:
    """As those of pyxis; here, one that every srun knows."""
    rollcall.script("import os\nprint('mark', os.environ['MARK'])")
    before = ["salloc", "--quiet", "--nodes=2"]
    ran = run_in(rollcall, slurm, before, "run", "-n", 1, "--srun-arg=--export=ALL,MARK=mine", "script.py")
    assert ran.code == 0, ran.err
    assert said(ran.out) == {"mark mine": [0, 1]}


@pytest.mark.parametrize(
    ("argument", "why"),
    [
        ("cpu-bind", "is no option of srun: write it with its dashes"),
        ("--cpu-bind=cores", "--srun-arg is for the srun of a SLURM job"),
    ],
)
def test_options_that_no_srun_would_get_are_refused(rollcall: Runner, argument: str, why: str) -> None:
    rollcall.script("print('never')")
    ran = rollcall("run", f"--srun-arg={argument}", "script.py")
    assert (ran.code, ran.out) == (2, "")
    assert why in ran.err


def test_the_step_decides_not_the_job() -> None:
    """In a batch script or in salloc the allocation is ours; in a step of several tasks it is not."""
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NAME": "interactive"}
    assert way.is_in_allocation(job)
    step = {**job, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    assert not way.is_in_allocation(step)
    assert way.is_in_step(step)
    assert way.is_in_allocation({**step, "SLURM_STEP_NUM_TASKS": "1"})
