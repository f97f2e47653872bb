"""A training as a job of a real SLURM."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.cluster.slurm import Slurm
from tests.cluster.sshd import Cluster
from tests.rollcall_command import until
from tests.train.small import PROGRAM, PYTHON_PATH

# Attempt 0 trains until it is preempted; attempt 1 loads the snapshot and ends.
JOB = """\
#!/bin/bash
exec {python} -m rollcall run -n 1 --preload tests.train.small --preload torch._dynamo program.py 1000000steps 1000000 1
"""


def test_a_requeued_job_continues_from_the_snapshot(slurm: Slurm, hosts: Cluster, tmp_path: Path) -> None:
    """After SIGUSR1 the job saves and continues. After SIGTERM it saves the current step within KillWait. The requeued
    job is the next attempt of the same run, and continues from that step.
    """
    (tmp_path / "job.sh").write_text(JOB.format(python=sys.executable))
    (tmp_path / "program.py").write_text(PROGRAM)
    runs, log, snapshots = tmp_path / ".rollcall" / "runs", tmp_path / "log", tmp_path / "snapshots"
    words = ["sbatch", "--parsable", "--requeue", "--nodes=2", "--output=log", "--open-mode=append", "job.sh"]
    env = {**os.environ, **slurm.env, "ROLLCALL_DIR": str(runs.parent), "PYTHONPATH": PYTHON_PATH}
    job = slurm.run(words, cwd=tmp_path, env=env).stdout.strip()
    assert until((snapshots / "metrics.jsonl").exists), log.exists() and log.read_text()
    # As SLURM does with --signal=B:USR1@60: to the batch script, which is the launcher.
    slurm.run(["scancel", "--batch", "--signal=USR1", job])
    assert until(lambda: any(snapshots.glob("step-*"))), log.read_text()
    slurm.run(["scontrol", "requeue", job])
    assert until(lambda: "steps done" in log.read_text()), log.read_text()
    step = max(int(path.name[5:]) for path in snapshots.glob("step-*"))
    output = log.read_text()
    assert "SIGUSR1 is passed on to the ranks that have a handler for it" in output
    assert f"SIGTERM at step {step}: the newest snapshot is that of step {step}" in output, output
    assert f"continuing from snapshots/step-{step:08d}" in output
    assert f"{step} steps done" in output
    (run,) = [path for path in runs.iterdir() if not path.is_symlink()]
    assert until(lambda: read_run_json(run)["outcome"] == "ok"), read_run_json(run)
    assert [len(attempt["pids"]) for attempt in read_run_json(run)["attempts"]] == [2, 2]


def read_run_json(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / "run.json").read_text()))
