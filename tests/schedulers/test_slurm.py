"""Runs as SLURM jobs: the batch script, and real jobs on a real SLURM."""

import contextlib
import dataclasses
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rollcall.errors import UsageError
from rollcall.linux.signals import received as interrupts
from rollcall.schedulers import slurm_job
from rollcall.schedulers.slurm_job import JobPoller, LogTail, run
from rollcall.schedulers.slurm_script import SlurmJob, script
from rollcall.schedulers.slurm_state import (
    FORGOTTEN,
    SlurmState,
    describe_end,
    describe_progress,
    read,
    read_accounting,
    read_json,
)
from tests.cluster.slurm import Slurm
from tests.cluster.sshd import Cluster
from tests.rollcall_command import until
from tests.said import said

JOB = SlurmJob(
    name="train",
    nodes=2,
    slots=4,
    arguments=("--max-restarts", "2", "train.py", "--name", "my model"),
    python="/opt/venv/bin/python",
    cwd="/home/you/my project",
    log=Path("logs/slurm-%j.out"),
    sbatch_args=("--partition=gpu", "--time=1:00:00"),
)


# ---- the script


def test_the_script_reads_as_one_written_by_hand() -> None:
    """`--dry-run` prints rollcall's options for sbatch, then the user's, then the folder and the command."""
    assert script(JOB) == (
        "#!/bin/bash\n"
        "# --max-restarts 2 train.py --name 'my model' on 2 nodes with 4 ranks each\n"
        "# Made by rollcall. Submit it with `sbatch FILE`.\n"
        "#SBATCH --job-name=train\n"
        "#SBATCH --nodes=2\n"
        "#SBATCH --ntasks-per-node=4\n"
        '#SBATCH --output="/home/you/my project/logs/slurm-%j.out"\n'
        "#SBATCH --open-mode=append\n"
        "#SBATCH --requeue\n"
        "#SBATCH --partition=gpu\n"
        "#SBATCH --time=1:00:00\n"
        "\n"
        "cd '/home/you/my project' || exit\n"
        "exec /opt/venv/bin/python -P -m rollcall run -n 4 --max-restarts 2 train.py --name 'my model'\n"
    )


def test_without_n_the_allocation_decides_the_number_of_ranks() -> None:
    """Without -n neither sbatch nor the run inside the job gets a number."""
    text = script(dataclasses.replace(JOB, slots=None, nodes=1))
    assert "--ntasks-per-node" not in text
    assert " -n " not in text
    assert "'my model' on 1 node\n" in text


def test_words_pass_through_the_shell_unchanged(tmp_path: Path) -> None:
    """Spaces, quotes, dollars and line breaks reach the program as they were typed, and stay out of the comments."""
    words = ("train.py", "a b", "it's", '"$HOME"', "`id`", "one\ntwo", "\\", "ü", "")
    python = tmp_path / "my python"
    python.write_text(f"#!{sys.executable}\nimport os, sys\nprint([os.getcwd(), *sys.argv[1:]])\n")
    python.chmod(0o755)
    job = dataclasses.replace(JOB, arguments=words, python=str(python), cwd=str(tmp_path))
    done = subprocess.run(["bash"], input=script(job), capture_output=True, text=True)
    assert done.stdout == f"{[str(tmp_path), '-P', '-m', 'rollcall', 'run', '-n', '4', *words]}\n"
    assert done.stderr == ""


def test_a_missing_folder_ends_the_job(tmp_path: Path) -> None:
    """The program does not run in another folder instead."""
    job = dataclasses.replace(JOB, cwd=str(tmp_path / "gone"), python="echo")
    done = subprocess.run(["bash"], input=script(job), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"nodes": 0}, "--nodes 0 leaves no host to run on: use 1 or more"),
        ({"slots": 0}, "-n 0 leaves no rank to run"),
        ({"name": "a\n#SBATCH --x"}, "cannot be written into a batch script"),
        ({"sbatch_args": ("partition=gpu",)}, "write it with its dashes, as in --sbatch-arg=--partition=gpu"),
        ({"sbatch_args": ("--comment=a\nreboot",)}, "has more than one line"),
        ({"sbatch_args": ("--array=1-3",)}, "a run is one"),
        ({"sbatch_args": ("-a1-3",)}, "a run is one"),
        ({"sbatch_args": ("-M other",)}, "login node of the other"),
        ({"sbatch_args": ("--wait",)}, "rollcall waits for the job anyway"),
    ],
)
def test_an_impossible_job_is_refused(wrong: dict[str, object], sentence: str) -> None:
    """Each error names the option and what to do."""
    with pytest.raises(UsageError, match=sentence):
        script(dataclasses.replace(JOB, **wrong))  # type: ignore[arg-type]


# ---- the state of a job


SHOWN = """\
JobId=7 JobName=x JobState=FAILED Reason=mine
   UserId=root(0) GroupId=root(0) MCS_label=N/A
   JobState=PENDING Reason=ReqNodeNotAvail,_UnavailableNodes:h[1-3] Dependency=(null)
   Requeue=1 Restarts=2 BatchFlag=1 Reboot=0 ExitCode=3:9
   ReqNodeList=(null) ExcNodeList=h9
   NodeList=(null)
   Comment=StdOut=/nowhere
   StdOut=/home/you/my project/slurm-7.out
   Power=
"""


def test_names_and_comments_are_not_taken_for_the_state() -> None:
    """A job's name and comment may contain any text."""
    reason = "ReqNodeNotAvail,_UnavailableNodes:h[1-3]"
    assert read(SHOWN) == SlurmState("PENDING", reason, 2, 3, 9, "", "/home/you/my project/slurm-7.out")


# As SLURM 23.02 prints a job, and what is printed otherwise since 23.11.
OLD = {
    "job_id": 7,
    "job_state": "FAILED",
    "state_reason": "NonZeroExitCode",
    "restart_cnt": 2,
    "exit_code": {"status": "SIGNALED", "return_code": 3, "signal": {"signal_id": 9, "name": "KILL"}},
    "nodes": "h[1-2]",
    "standard_output": "/home/you/my project/slurm-%j.out",
}
NEW = {
    "job_state": ["RUNNING", "CONFIGURING"],
    "exit_code": {
        "status": ["SUCCESS"],
        "return_code": {"set": True, "infinite": False, "number": 0},
        "signal": {"id": {"set": False, "infinite": False, "number": 0}, "name": ""},
    },
}


def test_json_is_read_as_each_version_prints_it() -> None:
    """The log's name is as the nodes see it; a flag stands for the state, as without --json."""
    log = "/home/you/my project/slurm-7.out"
    assert read_json(json.dumps({"jobs": [OLD]})) == SlurmState("FAILED", "NonZeroExitCode", 2, 3, 9, "h[1-2]", log)
    new = read_json(json.dumps({"jobs": [{**OLD, **NEW}]}))
    assert new == SlurmState("CONFIGURING", "NonZeroExitCode", 2, 0, 0, "h[1-2]", log)


@pytest.mark.parametrize("printed", ["", "{}", '{"jobs": []}', {"standard_output": "%x.out"}, {"exit_code": None}])
def test_json_that_is_not_as_known_is_left_to_the_text(printed: str | dict[str, object]) -> None:
    assert read_json(printed if isinstance(printed, str) else json.dumps({"jobs": [{**OLD, **printed}]})) is None


@pytest.mark.parametrize("takes_json", [True, False])
def test_scontrol_is_asked_for_json_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takes_json: bool) -> None:
    """One that does not know --json is asked for text from then on."""
    (tmp_path / "job.json").write_text(json.dumps({"jobs": [OLD]}))
    (tmp_path / "job.txt").write_text(SHOWN)
    answer = f"cat {tmp_path}/job.json" if takes_json else "echo \"unrecognized option '--json'\" >&2; exit 1"
    path = tmp_path / "scontrol"
    path.write_text(f'#!/bin/sh\nif [ "$1" = --json ]; then {answer}; else cat {tmp_path}/job.txt; fi\n')
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    poller, found = JobPoller("7"), []
    assert until(lambda: bool(found.append(poller.poll()) or found[-1]))
    assert found[-1].name == ("FAILED" if takes_json else "PENDING")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        (SlurmState("PENDING", "Resources"), "job 7 waits for free nodes (Resources)"),
        (SlurmState("PENDING", "Priority"), "job 7 waits for jobs of higher priority (Priority)"),
        (SlurmState("PENDING", "QOSMaxCpuPerUserLimit"), "job 7 waits for a limit of your account or partition"),
        (SlurmState("PENDING", "JobHeldUser"), "job 7 is held: `scontrol release 7` releases it (JobHeldUser)"),
        (
            SlurmState("PENDING", "ReqNodeNotAvail,_h3"),
            "waits for nodes that are down or reserved (ReqNodeNotAvail,_h3)",
        ),
        (SlurmState("PENDING", "SomethingNew"), "job 7 waits (SomethingNew)"),
        (SlurmState("CONFIGURING"), "job 7 has its nodes, which are being prepared"),
        (SlurmState("RUNNING", nodes="h[1-2]"), "job 7 runs on h[1-2]"),
    ],
)
def test_a_waiting_job_says_why(state: SlurmState, sentence: str) -> None:
    """The sentence explains SLURM's reason, and quotes it."""
    assert sentence in (describe_progress("7", state) or "")


def test_a_job_without_a_reason_says_nothing() -> None:
    """Between sbatch and the scheduler's first cycle there is nothing to report."""
    assert describe_progress("7", SlurmState("PENDING")) is None
    assert describe_progress("7", SlurmState("COMPLETING")) is None


@pytest.mark.parametrize(
    ("state", "code", "sentence"),
    [
        (SlurmState("COMPLETED"), 0, "job 7 is done"),
        (SlurmState("FAILED", "NonZeroExitCode", code=3), 3, "job 7 exited with code 3"),
        (SlurmState("FAILED", signal=9), 137, "job 7 was killed by SIGKILL: often the out-of-memory killer"),
        (SlurmState("FAILED", "JobLaunchFailure"), 1, "job 7 failed (JobLaunchFailure)"),
        (SlurmState("CANCELLED", signal=15), 1, "job 7 was cancelled by somebody else"),
        (SlurmState("TIMEOUT", signal=15), 1, "job 7 took longer than its time limit: ask for more with"),
        (SlurmState("OUT_OF_MEMORY", signal=125), 1, "job 7 ran out of the memory it had asked for: ask for more with"),
        (SlurmState("NODE_FAIL"), 1, "job 7 was ended because one of its nodes failed"),
        (SlurmState("PREEMPTED"), 1, "job 7 had to make room for another job, and was not requeued"),
        (SlurmState("BOOT_FAIL"), 1, "job 7 could not begin: its nodes did not boot"),
        (FORGOTTEN, 1, "job 7 is gone, and SLURM no longer knows how it ended"),
    ],
)
def test_each_end_has_a_sentence_and_an_exit_code(state: SlurmState, code: int, sentence: str) -> None:
    """The exit code is the program's own if the program ended by itself, otherwise 1."""
    assert state.is_over
    assert describe_end("7", state).startswith(sentence)
    assert state.exit_code == code


def test_accounting_remembers_how_a_job_ended() -> None:
    """sacct knows jobs that the controller has forgotten; without accounting it prints nothing."""
    assert read_accounting("FAILED|3:0\n") == SlurmState("FAILED", code=3)
    assert read_accounting("CANCELLED by 1000|0:15\n") == SlurmState("CANCELLED", signal=15)
    assert read_accounting("") is None


# ---- the log


def test_lines_are_shown_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Half a line is shown once it is complete, and text of an earlier job not at all."""
    path = tmp_path / "log"
    path.write_text("of an earlier job\n")
    log = LogTail(path, path.stat().st_size)
    for text, shown in (("0 │ o", ""), ("ne\n1 │ t", "0 │ one\n"), ("wo\n", "1 │ two\n")):
        with path.open("a") as file:
            file.write(text)
        log.show()
        assert capsys.readouterr().out == shown


def test_a_truncated_log_is_shown_from_its_beginning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --open-mode=truncate a requeued job empties the file."""
    log = LogTail(tmp_path / "log")
    log.path.write_text("the first start\n")
    log.show()
    log.path.write_text("again\n")
    log.show()
    assert capsys.readouterr().out == "the first start\nagain\n"


def test_late_text_is_not_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that appears and grows after the job is over, as over NFS, is shown to its last byte."""
    log = LogTail(tmp_path / "log")
    late = ["0 │ first\n", "", "", "0 │ second\n", "0 │ without an end"]
    wait = time.sleep

    def write_and_wait(seconds: float) -> None:
        if late:
            with log.path.open("a") as file:
                file.write(late.pop(0))
        wait(seconds)

    monkeypatch.setattr(slurm_job.time, "sleep", write_and_wait)
    log.finish()
    assert capsys.readouterr().out == "0 │ first\n0 │ second\n0 │ without an end"


# ---- errors before a job runs


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmJob]:
    """A small job, in a folder with a space in its name."""
    folder = tmp_path / "my project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield SlurmJob("it", 1, 1, ("--no-python", "true"), sys.executable, str(folder), Path("logs/slurm-%j.out"))
    interrupts.clear()


@pytest.fixture
def cluster_job(hosts: Cluster, slurm: Slurm, job: SlurmJob, monkeypatch: pytest.MonkeyPatch) -> SlurmJob:
    """The same job, on a host with SLURM."""
    monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
    return job


def ignore(_: str) -> None:
    pass


def test_without_sbatch_the_error_says_what_to_do(job: SlurmJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence names both ways to submit the job."""
    monkeypatch.setenv("PATH", job.cwd)
    with pytest.raises(UsageError, match=r"needs sbatch.*No such file.*login node.*--dry-run"):
        run(job, ignore)


def test_a_signal_before_the_start_submits_nothing(job: SlurmJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """An early Ctrl-C ends with 130, and sbatch, which does not exist here, is not called."""
    monkeypatch.setenv("PATH", job.cwd)
    interrupts.append(signal.SIGINT)
    assert run(job, ignore) == 130


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        ("--partition=nope", r"refuses the partition \(invalid partition specified: nope\).*`sinfo` lists"),
        ("--time=soon", r"refuses the job \(Invalid --time specification\)"),
        ("--frobnicate=3", r"refuses the job \(unrecognized option '--frobnicate=3'\)"),
        ("--gpus-per-node=4", r"refuses the job \(Invalid generic resource \(gres\) specification\)"),
        ("--comment=two words", r"refuses the job \(Invalid directive found in batch script: words\)"),
    ],
)
def test_what_sbatch_refuses_is_one_sentence(cluster_job: SlurmJob, slurm: Slurm, argument: str, sentence: str) -> None:
    """The sentence quotes sbatch's first error, and nothing is submitted."""
    with pytest.raises(UsageError, match=sentence) as refused:
        run(dataclasses.replace(cluster_job, sbatch_args=(argument,)), ignore)
    assert "\n" not in str(refused.value)
    assert slurm.jobs() == []


def test_a_controller_that_does_not_answer_is_one_sentence(
    cluster_job: SlurmJob, slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_port: int
) -> None:
    """Nothing listens on the controller's port."""
    conf = tmp_path / "slurm.conf"
    text = slurm.conf.read_text().replace(f"SlurmctldPort={slurm.port}", f"SlurmctldPort={free_port}")
    conf.write_text(f"{text}MessageTimeout=2\n")
    monkeypatch.setenv("SLURM_CONF", str(conf))
    with pytest.raises(UsageError, match=r"SLURM does not answer \(.*Unable to contact slurm controller"):
        run(cluster_job, ignore)


def test_an_impossible_log_folder_is_one_sentence(job: SlurmJob) -> None:
    """A file has the name of the log's folder."""
    Path(job.cwd, "logs").touch()
    with pytest.raises(UsageError, match=r"the log's folder .*/logs cannot be made \(File exists\)"):
        run(job, ignore)


# ---- real jobs


class Messages(list[str]):
    """What rollcall prints; `when` acts once, as soon as a message contains some text."""

    def __init__(self) -> None:
        self._actions: list[tuple[str, Callable[[], object]]] = []

    def when(self, part: str, act: Callable[[], object]) -> None:
        self._actions.append((part, act))

    def __call__(self, text: str) -> None:
        self.append(text)
        for waiting in self._actions:
            if waiting[0] in text:
                self._actions.remove(waiting)
                waiting[1]()
                return

    @property
    def number(self) -> str:
        return self[0].split()[1]


def written(job: SlurmJob, text: str) -> SlurmJob:
    """The job with this program."""
    Path(job.cwd, "program.py").write_text(text)
    return dataclasses.replace(job, arguments=("program.py",))


ALL_REDUCE = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.tensor([float(dist.get_rank())])
dist.all_reduce(x)
print("sum", x.item(), "of", dist.get_world_size(), flush=True)
print("on", os.uname().nodename, flush=True)
dist.destroy_process_group()
"""

STAYING = """
import pathlib, time
print("here", flush=True)
pathlib.Path("here").touch()
time.sleep(1000)
"""


def test_a_job_runs_on_all_its_nodes(cluster_job: SlurmJob, capsys: pytest.CaptureFixture[str]) -> None:
    """Four ranks on two nodes take part in an all_reduce; messages name number, log, nodes and end; the code is 0."""
    messages = Messages()
    assert run(written(dataclasses.replace(cluster_job, nodes=2, slots=2), ALL_REDUCE), messages) == 0
    lines = said(capsys.readouterr().out)
    assert lines == {"sum 6.0 of 4": [0, 1, 2, 3], "on h1": [0, 1], "on h2": [2, 3]}
    number = messages.number
    assert messages == [
        f"job {number} is submitted: 2 nodes with 2 ranks each; its log is logs/slurm-{number}.out",
        *messages[1:-2],  # reasons to wait, if SLURM had one to give
        f"job {number} runs on h[1-2]",
        f"job {number} is done",
    ]


def test_tasks_that_were_asked_for_become_ranks(cluster_job: SlurmJob, capsys: pytest.CaptureFixture[str]) -> None:
    """Without -n there is a rank for each task of --ntasks-per-node."""
    words = ("--no-python", "sh", "-c", "echo $WORLD_SIZE")
    args = ("--ntasks-per-node=3", "--output=mine-%j.log")
    messages = Messages()
    assert run(dataclasses.replace(cluster_job, slots=None, arguments=words, sbatch_args=args), messages) == 0
    assert said(capsys.readouterr().out) == {"3": [0, 1, 2]}
    assert f"job {messages.number} has its log in mine-{messages.number}.log" in messages


def test_the_exit_code_is_that_of_the_failed_rank(cluster_job: SlurmJob, capsys: pytest.CaptureFixture[str]) -> None:
    """A rank on the second node exits with 3, and so does the run, after the end of the log is shown."""
    messages = Messages()
    program = "import os, sys\nprint('here', flush=True)\nsys.exit(3 * int(os.environ['RANK']))\n"
    assert run(written(dataclasses.replace(cluster_job, nodes=2), program), messages) == 3
    assert messages[-1] == f"job {messages.number} exited with code 3"
    assert "rollcall: rank 1 on h2 exited with code 3" in capsys.readouterr().out


def test_ctrl_c_cancels_the_job(cluster_job: SlurmJob, hosts: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """A message says so, the end of the log is shown, the code is 130, and no process is left on the hosts."""
    messages = Messages()
    here = Path(cluster_job.cwd, "here")
    messages.when(" runs on ", lambda: until(here.exists) and interrupts.append(signal.SIGINT))
    assert run(written(dataclasses.replace(cluster_job, nodes=2), STAYING), messages) == 130
    assert messages[-2].startswith(f"interrupted: job {messages.number} is cancelled")
    assert messages[-1] == f"job {messages.number} is over"
    assert f"JOB {messages.number} ON h1 CANCELLED" in capsys.readouterr().out
    assert hosts.wait_until_idle(5) == []


def test_ctrl_c_twice_kills_the_job_and_leaves(cluster_job: SlurmJob) -> None:
    """After the second Ctrl-C rollcall does not wait for the job's end."""
    messages = Messages()
    here = Path(cluster_job.cwd, "here")
    messages.when(" runs on ", lambda: until(here.exists) and interrupts.append(signal.SIGTERM))
    messages.when("interrupted: ", lambda: interrupts.append(signal.SIGINT))
    assert run(written(cluster_job, STAYING), messages) == 143
    assert messages[-1].startswith(f"job {messages.number} is killed; its log is logs/slurm-")


def test_a_waiting_job_can_be_cancelled(cluster_job: SlurmJob, slurm: Slurm) -> None:
    """A message says that the job is held; Ctrl-C ends it, without waiting for a log that will not appear."""
    messages = Messages()
    messages.when(" is held", lambda: interrupts.append(signal.SIGINT))
    assert run(dataclasses.replace(cluster_job, sbatch_args=("--hold",)), messages) == 130
    assert messages[-1] == f"job {messages.number} is over"
    assert not any("did not appear" in text for text in messages)


def test_a_job_says_why_it_waits(cluster_job: SlurmJob, slurm: Slurm) -> None:
    """While another job has all nodes, a message says that this one waits for free nodes; then it runs."""
    words = ["sbatch", "--parsable", "--exclusive", "--nodes=3", "--output=/dev/null", "--wrap", "sleep 1000"]
    other = slurm.run(words).stdout.strip()
    assert until(lambda: set(slurm.nodes().values()) == {"alloc"})
    messages = Messages()
    messages.when("waits for free nodes (Resources)", lambda: slurm.run(["scancel", other]))
    assert run(dataclasses.replace(cluster_job, nodes=3), messages) == 0
    assert any(text == f"job {messages.number} waits for free nodes (Resources)" for text in messages)


def test_a_job_that_another_command_cancels_has_failed(cluster_job: SlurmJob, slurm: Slurm) -> None:
    """A message says so, and the code is 1."""
    messages = Messages()
    here = Path(cluster_job.cwd, "here")
    messages.when(" runs on ", lambda: until(here.exists) and slurm.run(["scancel", messages.number]))
    assert run(written(cluster_job, STAYING), messages) == 1
    assert messages[-1] == f"job {messages.number} was cancelled by somebody else"


def test_a_requeued_job_is_still_followed(
    cluster_job: SlurmJob, slurm: Slurm, capsys: pytest.CaptureFixture[str]
) -> None:
    """A message says so, and the output of both starts is shown, once each."""
    messages = Messages()
    here = Path(cluster_job.cwd, "here")
    program = f"import os\nif 'SLURM_RESTART_COUNT' in os.environ:\n    raise SystemExit(print('again'))\n{STAYING}"
    messages.when(" runs on ", lambda: until(here.exists) and slurm.run(["scontrol", "requeue", messages.number]))
    assert run(written(cluster_job, program), messages) == 0
    assert f"job {messages.number} was requeued: waiting for its next start" in messages
    assert [text for text in messages if " runs on " in text] == [f"job {messages.number} runs on h1"] * 2
    out = capsys.readouterr().out
    assert (out.count("│ here\n"), out.count("│ again\n")) == (1, 1)


def test_a_lost_terminal_leaves_the_job_alone(cluster_job: SlurmJob, slurm: Slurm) -> None:
    """SIGHUP ends rollcall, not the job."""
    messages = Messages()
    here = Path(cluster_job.cwd, "here")
    messages.when(" runs on ", lambda: until(here.exists) and interrupts.append(signal.SIGHUP))
    assert run(written(cluster_job, STAYING), messages) == 129
    assert messages[-1].startswith(f"the terminal is gone; job {messages.number} continues")
    assert slurm.jobs() == [messages.number]
    slurm.run(["scancel", messages.number])


def test_a_log_that_the_nodes_cannot_open_is_named(cluster_job: SlurmJob, hosts: Cluster) -> None:
    """Where the log's folder is not shared, the job cannot start, and the message says why."""
    messages = Messages()
    path = hosts.private / "logs" / "%j.out"
    assert run(dataclasses.replace(cluster_job, log=path), messages) == 1
    assert f"could not open the log {hosts.private}/logs/{messages.number}.out: use a folder they share" in messages[-1]


def test_a_log_that_does_not_appear_here_is_named(
    cluster_job: SlurmJob, hosts: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nodes write the log, but on disks of their own."""
    monkeypatch.setattr(slurm_job, "_LATE_LOG_S", 0.5)
    messages = Messages()
    assert run(dataclasses.replace(cluster_job, log=hosts.private / "%j.out"), messages) == 0
    path = f"{hosts.private}/{messages.number}.out"
    assert messages[-2:] == [
        f"the log {path} did not appear here: use a folder that the nodes share",
        f"job {messages.number} is done",
    ]


def test_a_job_that_slurm_has_forgotten_is_over(cluster_job: SlurmJob) -> None:
    """Without accounting its end is unknown."""
    poller = JobPoller("999999")
    found: list[object] = []
    assert until(lambda: found.append(poller.poll()) or found[-1])
    assert found[-1] == FORGOTTEN


FOLLOWER = """
import sys
from pathlib import Path
from rollcall.errors import say
from rollcall.schedulers.slurm_script import SlurmJob
from rollcall.schedulers.slurm_job import run
words = ("--no-python", "sh", "-c", "while echo here; do sleep 0.1; done")
sys.exit(run(SlurmJob("it", 1, 1, words, sys.executable, sys.argv[1], Path("%j.out")), say))
"""


@contextlib.contextmanager
def follower(job: SlurmJob) -> Iterator["subprocess.Popen[str]"]:
    """A process that follows a job with endless output, and has shown some of it."""
    words = [sys.executable, "-c", FOLLOWER, job.cwd]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert any("here" in line for line in process.stdout)
            yield process
        finally:
            process.kill()


def test_a_closed_pipe_ends_the_job(cluster_job: SlurmJob) -> None:
    """`rollcall run … | head -1` cancels the job, as it ends the ranks of a run on this host."""
    with follower(cluster_job) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()
        assert process.wait(timeout=180) == 128 + signal.SIGPIPE
    assert "rollcall: interrupted: job " in err
    assert "Traceback" not in err


def test_a_killed_follower_leaves_the_job_alone(cluster_job: SlurmJob, slurm: Slurm) -> None:
    """The job continues."""
    with follower(cluster_job) as process:
        process.kill()
        process.wait()
        (number,) = slurm.jobs()
        slurm.run(["scancel", number])
