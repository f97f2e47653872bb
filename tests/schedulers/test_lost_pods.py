"""Pods that are lost come back, and the run goes on.

The API server of this test has real processes as pods, and does what the Job controller does with the manifest: it
replaces pods that are lost, counts those that fail, and fails the Job by its rules.
"""

import contextlib
import dataclasses
import itertools
import subprocess
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from rollcall.schedulers.k8s_job import run
from rollcall.schedulers.k8s_manifest import K8sJob
from tests.rollcall_command import Runner
from tests.schedulers.test_kubernetes import (
    JOB,
    Cluster,
    Clusters,
    container,
    container_status,
    documents,
    needs_kubectl,
    start_cluster,
)
from tests.train.conftest import WarmRanks, _server, ranks
from tests.train.small import PYTHON_PATH, differences, fit

__all__ = ["_server", "ranks", "start_cluster"]  # fixtures

PROGRAM = """\
import os, threading, torch
from pathlib import Path
from tests.train.small import fit

def be_lost(trainer):
    mark = Path(f"lose-{trainer.world.rank}")
    if (trainer.world.rank, trainer.step) in ((1, 7), (0, 16)) and not mark.exists():
        mark.touch()
        threading.Event().wait()  # until its pod is gone

fitted = fit(folder=Path("snapshots"), epochs=4, save_every="2 steps", before_step=be_lost)
if os.environ["RANK"] == "0":
    torch.save(fitted["weights"], "weights.pt")
"""


@dataclasses.dataclass
class RealPod:
    index: int
    name: str
    log: Path
    process: "subprocess.Popen[Any]"

    @property
    def status(self) -> dict[str, Any]:
        code = self.process.poll()
        if code is None:
            return {"phase": "Running", **container_status({"running": {"startedAt": "2026-01-01T00:00:00Z"}})}
        ended = {"exitCode": code if code >= 0 else 128 - code, "finishedAt": "2026-01-01T00:01:00Z", "reason": ""}
        return {"phase": "Failed" if code else "Succeeded", **container_status({"terminated": ended})}


def _end(pod: RealPod) -> None:
    """All processes of a pod end with it, and so do its ports, before another one takes its place."""
    try:
        processes = psutil.Process(pod.process.pid).children(recursive=True)
    except psutil.NoSuchProcess:  # it has ended by itself
        return
    pod.process.kill()
    pod.process.wait()
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    assert psutil.wait_procs(processes, timeout=60)[1] == []


class RealCluster(Cluster):
    """A pod is deleted once its file `lose-INDEX` is there, as if its node had failed."""

    def __init__(self, job: K8sJob, runner: Runner) -> None:
        super().__init__([])
        self._job, self._runner = job, runner
        self._spec = documents(job)[1]["spec"]
        self.current: list[RealPod] = []
        self.all: dict[str, RealPod] = {}
        self.failures, self.losses, self.outcome = 0, 0, ""
        self._numbers = itertools.count()  # no two pods have the same name
        self._over = threading.Event()
        self._controller = threading.Thread(target=self._control, daemon=True)

    def service_actions(self) -> None:
        """Called all the time by the server's own loop."""
        if "Job" in self.made and not self.current:
            self.current = [self._start(index) for index in range(self._job.nodes)]
            self._controller.start()

    def _start(self, index: int) -> RealPod:
        names = {"$(JOB_COMPLETION_INDEX)": str(index), self._job.master: "127.0.0.1"}
        words = [names.get(word, word) for word in (*container(self._job)["command"], *container(self._job)["args"])]
        name = f"{self._job.host(index)}-{next(self._numbers):05}"
        log = self._runner.folder / f"{name}.log"
        with open(log, "wb") as out:
            process = self._runner.start(*words[1:], stdout=out, stderr=subprocess.STDOUT)
        self.all[name] = RealPod(index, name, log, process)
        return self.all[name]

    def _control(self) -> None:
        lost: set[int] = set()
        while not self._over.wait(0.05) and not self.outcome:
            for pod in list(self.current):
                if pod.index not in lost and (self._runner.folder / f"lose-{pod.index}").exists():
                    lost.add(pod.index)
                    self.losses += 1
                    del self.all[pod.name]
                    _end(pod)
                    self.current[pod.index] = self._start(pod.index)
                elif pod.process.poll():
                    self._replace(pod, pod.process.returncode)
            if all(pod.process.poll() == 0 for pod in self.current):
                self.outcome = "Complete"

    def _replace(self, pod: RealPod, code: int) -> None:
        rule = self._spec["podFailurePolicy"]["rules"][1]["onExitCodes"]
        self.failures += 1
        if code not in rule["values"] or self.failures > self._spec["backoffLimit"]:
            self.outcome = "Failed"
        else:
            self.current[pod.index] = self._start(pod.index)

    def job(self) -> dict[str, Any]:
        conditions = [{"type": self.outcome, "status": "True"}] if self.outcome else []
        return {**self.made["Job"], "status": {"conditions": conditions}}

    def list_pods(self) -> list[dict[str, Any]]:
        return [self.described(pod) for pod in list(self.all.values())]

    def described(self, pod: RealPod) -> dict[str, Any]:
        index = {"batch.kubernetes.io/job-completion-index": str(pod.index)}
        spec = {"containers": [{"name": "rollcall", "image": self._job.image}]}
        metadata = {"name": pod.name, "annotations": index}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": pod.status}

    def pod_named(self, name: str) -> dict[str, Any]:
        return self.described(self.all[name])

    def lines_of(self, name: str) -> list[str]:
        """All of it, once the pod has ended."""
        pod = self.all[name]
        while pod.process.poll() is None and name in self.all:
            time.sleep(0.05)
        return pod.log.read_text().splitlines()

    def server_close(self) -> None:
        self._over.set()
        for pod in self.current:
            _end(pod)
        super().server_close()


@needs_kubectl
def test_a_training_goes_on_after_two_lost_pods(
    start_cluster: Clusters, rollcall: Runner, free_port: int, ranks: WarmRanks, capsys: pytest.CaptureFixture[str]
) -> None:
    """First one is lost, then the one with the master, which takes the other one with it. The training continues from
    its snapshots, and has the weights of one that was never disturbed, bit for bit."""
    rollcall.script(PROGRAM, "train.py")
    rollcall.env["PYTHONPATH"] = PYTHON_PATH
    options = ("--preload", "tests.train.small", "--grace", "1")
    threads = {"OMP_NUM_THREADS": "1"}  # as two ranks on one host have: else sums are made in another order
    job = dataclasses.replace(
        JOB, slots=1, program=("train.py",), port=free_port, max_restarts=2, options=options, env=threads
    )
    rollcall.env |= {each["name"]: each["value"] for each in container(job)["env"] if "value" in each}
    cluster = RealCluster(job, rollcall)
    start_cluster.serve(cluster)
    messages: list[str] = []
    code = run(job, messages.append)
    logs = "\n".join(path.read_text() for path in sorted(rollcall.folder.glob("*.log")))
    assert code == 0, logs
    assert cluster.losses == 2
    assert "train-x-1: was deleted; Kubernetes starts it again" in messages
    assert "train-x-1: exited with code 75; Kubernetes starts it again" in messages, messages
    assert logs.count("continuing from snapshots/step-") == 2, logs
    never_lost = ranks(partial(fit, epochs=4), 2)[0]["weights"]
    assert differences(never_lost, torch.load(rollcall.folder / "weights.pt")) == []
    assert rollcall.wait_until_gone() == []
