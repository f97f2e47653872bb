"""A run on Kubernetes: valid manifests, and the real kubectl with a small API server in place of a cluster.

The pods of that server follow a script: they change state when kubectl lists them or has read their log, never by
time.
"""

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rollcall.errors import UsageError
from rollcall.linux.signals import received as interrupts
from rollcall.schedulers.k8s_job import run
from rollcall.schedulers.k8s_manifest import K8sJob, check, manifest, name_for
from tests.rollcall_command import ROLLCALL, Runner, until

needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
IMAGE = "team/train:1.2"
JOB = K8sJob("train-x", IMAGE, nodes=2, slots=4, program=("train.py", "--epochs", "3"))
FULL = dataclasses.replace(
    JOB,
    max_restarts=2,
    options=("--preload", "transformers"),
    env={"OMP_NUM_THREADS": "4"},
    namespace="research",
    gpus=4,
    cpu="8",
    memory="64Gi",
    workdir="/app",
    volumes=("snapshots:/snapshots", "data:/data"),
    secrets=("wandb",),
    shm="16Gi",
    tolerations=("nvidia.com/gpu", "team=vision"),
    priority="urgent",
    grace_s=60,
)


def documents(job: K8sJob) -> tuple[dict[str, Any], dict[str, Any]]:
    service, batch = yaml.safe_load_all(manifest(job))
    return service, batch


def container(job: K8sJob) -> dict[str, Any]:
    (only,) = documents(job)[1]["spec"]["template"]["spec"]["containers"]
    return only  # type: ignore[no-any-return]


# ---- manifests


@pytest.mark.parametrize(
    ("job", "version"),
    [
        *((job, version) for job in (JOB, dataclasses.replace(FULL, max_restarts=0)) for version in ("1.25", "1.37")),
        *((FULL, version) for version in ("1.29", "1.32", "1.37")),
        (dataclasses.replace(JOB, nodes=1), "1.32"),
    ],
)
def test_manifests_follow_the_official_schemas(job: K8sJob, version: str) -> None:
    """Service and Job have only fields that Kubernetes knows, of the right types, in old and new versions."""
    for document in documents(job):
        kubernetes_validate.validate(document, version, strict=True)


def test_ranks_can_be_counted_in_the_pod() -> None:
    """`-n gpu` is passed on: the pod's GPUs count, not those of the host that submits."""
    job = dataclasses.replace(JOB, slots="gpu")
    assert container(job)["args"][8:10] == ["-n", "gpu"]
    assert "2 pods with one rank per GPU, of train.py" in manifest(job)


def test_the_service_names_the_pods_before_they_are_ready() -> None:
    """The Service is headless, chooses the Job's own pods, publishes unready ones, and is their subdomain."""
    service, batch = documents(JOB)
    template = batch["spec"]["template"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    assert template["spec"]["subdomain"] == service["metadata"]["name"]


def test_one_pod_per_node_and_a_lost_one_comes_back() -> None:
    """The Job is Indexed with as many pods as nodes. With restarts, lost pods are replaced; a failed rank is restarted
    by rollcall, and by nobody else. Without, one failure ends the Job."""
    spec = documents(FULL)[1]["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 2, 2)
    assert (spec["backoffLimit"], spec["template"]["spec"]["restartPolicy"]) == (4, "Never")
    assert container(FULL)["args"][10:12] == ["--max-restarts", "2"]
    evicted, failed = spec["podFailurePolicy"]["rules"]
    assert (evicted["action"], evicted["onPodConditions"][0]["type"]) == ("Ignore", "DisruptionTarget")
    assert (failed["action"], failed["onExitCodes"]["values"]) == ("FailJob", [75, 137, 143])
    once = documents(JOB)[1]["spec"]
    assert (once["backoffLimit"], "podFailurePolicy" in once) == (0, False)


def test_pods_have_volumes_secrets_tolerations_and_a_priority() -> None:
    pod = documents(FULL)[1]["spec"]["template"]["spec"]
    claims = {each["name"]: each["persistentVolumeClaim"]["claimName"] for each in pod["volumes"][1:]}
    mounts = {claims[each["name"]]: each["mountPath"] for each in container(FULL)["volumeMounts"][1:]}
    assert mounts == {"snapshots": "/snapshots", "data": "/data"}
    assert pod["volumes"][0]["emptyDir"] == {"medium": "Memory", "sizeLimit": "16Gi"}
    assert container(FULL)["envFrom"] == [{"secretRef": {"name": "wandb"}}]
    assert pod["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists"},
        {"key": "team", "operator": "Equal", "value": "vision"},
    ]
    assert pod["priorityClassName"] == "urgent"


def test_a_pod_knows_its_number_and_the_master() -> None:
    """Each pod runs `rollcall run` with its index as node rank, and the first pod's name as master."""
    assert container(JOB)["command"] == ["rollcall", "run"]
    assert " ".join(container(JOB)["args"]) == (
        "--nnodes 2 --node-rank $(JOB_COMPLETION_INDEX) --master-addr train-x-0.train-x --master-port 29500 -n 4"
        " train.py --epochs 3"
    )
    (index,) = container(JOB)["env"]
    assert index["name"] == "JOB_COMPLETION_INDEX"
    assert "job-completion-index" in index["valueFrom"]["fieldRef"]["fieldPath"]


def test_resources_are_asked_for_per_pod() -> None:
    """GPUs and memory are limits, CPU and memory are requests; without them the pod asks for nothing."""
    assert container(FULL)["resources"] == {
        "requests": {"cpu": "8", "memory": "64Gi"},
        "limits": {"memory": "64Gi", "nvidia.com/gpu": "4"},
    }
    assert "resources" not in container(JOB)


def test_data_loader_workers_have_shared_memory() -> None:
    """/dev/shm is a volume in memory: the default of 64 MiB is too little."""
    (volume,) = documents(JOB)[1]["spec"]["template"]["spec"]["volumes"]
    assert volume["emptyDir"] == {"medium": "Memory"}
    assert container(JOB)["volumeMounts"] == [{"name": volume["name"], "mountPath": "/dev/shm"}]


def test_ranks_have_their_grace_before_the_pod_is_killed() -> None:
    """A pod that is deleted lives longer than the grace that rollcall gives its ranks."""
    assert documents(FULL)[1]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > FULL.grace_s
    assert container(FULL)["args"][12:14] == ["--grace", "60"]


def test_the_manifest_is_the_same_each_time_and_says_what_it_is() -> None:
    """Equal jobs give equal text, which opens with what runs and how to submit and remove it."""
    assert manifest(FULL) == manifest(dataclasses.replace(FULL))
    head = manifest(JOB).split("---")[0]
    assert "2 pods with 4 ranks each, of train.py --epochs 3" in head
    assert "kubectl create -f" in head
    assert "kubectl delete -f" in head


@given(st.text(max_size=120))
def test_any_program_gives_a_valid_name(target: str) -> None:
    """The name made of a script's is one that Job, Service and host names may have, whatever the script's is."""
    check(dataclasses.replace(JOB, name=name_for(target), nodes=100_000))


def test_names_tell_the_script_and_differ() -> None:
    """Two runs of one script get two names, both of which begin with the script's."""
    first, second = name_for("src/Train_Big.py"), name_for("src/Train_Big.py")
    assert first != second
    assert re.fullmatch(r"train-big-[0-9a-f]{6}", first)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no nodes": ({"nodes": 0}, "--nodes 0 leaves no host to run on: use 1 or more"),
    "no ranks": ({"slots": 0}, "-n 0 is no number of ranks for a pod: use 1 or more, or gpu"),
    "ranks in words": ({"slots": "many"}, "-n many is no number of ranks"),
    "no image": ({"image": ""}, "--kubernetes needs --image"),
    "an image with a space": ({"image": "my image"}, "'my image' has a space in it"),
    "an image in capitals": ({"image": "team/Train:1"}, "team/Train:1 has capital letters in its name"),
    "a long name": ({"name": "a" * 63}, "has 63 letters, .*: use at most 61"),
    "a name with capitals": ({"name": "Train"}, "--name 'Train' cannot name a Job"),
    "a name with a digit first": ({"name": "3d"}, "a letter at the front"),
    "a namespace with a slash": ({"namespace": "a/b"}, "--namespace a/b cannot be one"),
    "memory without a number": ({"memory": "lots"}, "--memory lots is not an amount: use one such as 16Gi"),
    "cpu in words": ({"cpu": "all"}, "--cpu all is not an amount: use one such as 4"),
    "GPUs below zero": ({"gpus": -1}, "--gpus -1 is below zero"),
    "a volume without a folder": ({"volumes": ("data",)}, "--volume data is not CLAIM:FOLDER"),
    "two volumes in one folder": ({"volumes": ("a:/data", "b:/data")}, "--volume a:/data is not the only one at /data"),
    "a secret with a space": ({"secrets": ("my key",)}, "--secret my key cannot be a name"),
    "a priority in capitals": ({"priority": "High"}, "--priority High cannot be a name"),
    "a toleration with a space": ({"tolerations": ("a b",)}, "--toleration a b is no KEY or KEY=VALUE"),
    "a variable with =": ({"env": {"A=B": "1"}}, "'A=B' cannot be the name of a variable"),
    "a port out of range": ({"port": 70000}, "--master-port 70000 is no port"),
    "restarts below zero": ({"max_restarts": -1}, "--max-restarts -1 is below zero"),
}


@pytest.mark.parametrize("case", WRONG)
def test_bad_input_is_one_sentence(case: str) -> None:
    """What Kubernetes would refuse, or take and never start, is said before anything is sent."""
    changes, sentence = WRONG[case]
    with pytest.raises(UsageError, match=sentence) as caught:
        manifest(dataclasses.replace(JOB, **changes))
    assert "\n" not in str(caught.value)


# ---- an API server in place of a cluster

UNSCHEDULABLE = {
    "phase": "Pending",
    "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}
    ],
}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"phase": "Pending", **container_status({"waiting": {"reason": reason, "message": message}})}


def container_status(state: dict[str, Any]) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "rollcall", "image": IMAGE, "state": state}]}


@dataclass
class Pod:
    """A pod that goes through `before`, one state per request, then prints its lines, then ends."""

    lines: list[str] = field(default_factory=list)
    exit_code: int = 0
    before: list[dict[str, Any]] = field(default_factory=list)
    stays: bool = False  # in its last state before it runs, or running, until it is deleted
    breaks_after: int | None = None  # lines, after which the first connection to its log breaks
    ended_at: str = "2026-01-01T00:01:00Z"
    reason: str = "Error"
    message: str = ""
    last_line: str = ""  # when it is deleted
    phase: str = "before"
    log_requests: list[dict[str, str]] = field(default_factory=list)

    def next_status(self) -> dict[str, Any]:
        """Its state; the next request may get the next one."""
        if self.phase == "before":
            if self.before:
                return self.before[0] if self.stays and len(self.before) == 1 else self.before.pop(0)
            self.phase = "running"
        if self.phase == "running":
            return {"phase": "Running", **container_status({"running": {"startedAt": "2026-01-01T00:00:00Z"}})}
        ended = {
            "exitCode": self.exit_code,
            "finishedAt": self.ended_at,
            "reason": self.reason,
            "message": self.message,
        }
        phase = "Failed" if self.exit_code else "Succeeded"
        return {"phase": phase, **container_status({"terminated": ended})}


class Cluster(ThreadingHTTPServer):
    """As much of the Kubernetes API as kubectl asks for."""

    daemon_threads = True

    def __init__(self, pods: list[Pod], refusals: dict[str, tuple[int, str, str]] | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Api)
        self.pods, self.refusals = pods, refusals or {}
        self.made: dict[str, dict[str, Any]] = {}  # by kind
        self.deleted: list[str] = []
        self.changed = threading.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def kubeconfig(self, folder: Path) -> Path:
        path = folder / "kubeconfig"
        parts = {
            "clusters": [{"name": "here", "cluster": {"server": self.url}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
            "users": [{"name": "me", "user": {}}],
        }
        path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "current-context": "here", **parts}))
        return path

    def job(self) -> dict[str, Any]:
        codes = [pod.exit_code if pod.phase == "ended" else None for pod in self.pods]
        conditions: list[dict[str, str]] = []
        if any(codes):
            message = "Job has reached the specified backoff limit"
            conditions = [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": message}]
        elif not any(code is None for code in codes):
            conditions = [{"type": "Complete", "status": "True"}]
        return {**self.made["Job"], "status": {"conditions": conditions}}

    def list_pods(self) -> list[dict[str, Any]]:
        with self.changed:
            return [self.pod(index) for index in range(len(self.pods))]

    def pod(self, index: int) -> dict[str, Any]:
        metadata = {
            "name": f"train-x-{index}-abcde",
            "annotations": {"batch.kubernetes.io/job-completion-index": str(index)},
        }
        spec = {"containers": [{"name": "rollcall", "image": IMAGE}]}
        status = self.pods[index].next_status()
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}

    def pod_named(self, name: str) -> dict[str, Any]:
        return self.pod(_index(name))

    def lines_of(self, name: str) -> list[str]:
        """Where pods do not follow a script, such as those of test_lost_pods.py."""
        raise NotImplementedError(name)

    def delete(self, kind: str) -> dict[str, Any]:
        with self.changed:
            self.deleted.append(kind)
            gone = self.made.pop(kind)
            if kind == "Job":
                for pod in self.pods:
                    pod.phase, pod.exit_code = "ended", 143
            self.changed.notify_all()
        return gone


class _Api(BaseHTTPRequestHandler):
    server: Cluster

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        match url.path.strip("/").split("/"):
            case [*_, "jobs" | "pods" as kind] if not self._refused(f"get {kind}"):
                jobs = [self.server.job()] if kind == "jobs" and "Job" in self.server.made else []
                pods = self.server.list_pods() if kind == "pods" and (self.server.made or self.server.deleted) else []
                group = {"jobs": "batch/v1", "pods": "v1"}[kind]
                self._answer({"apiVersion": group, "kind": f"{kind[:-1].title()}List", "items": jobs + pods})
            case [*_, "pods", name, "log"] if "get log" in self.server.refusals:
                self.server.pods[_index(name)].phase = "ended"
                self._refused("get log")
            case [*_, "pods", name, "log"] if not self.server.pods:
                self._send_lines(self.server.lines_of(name))
            case [*_, "pods", name, "log"]:
                self._log(self.server.pods[_index(name)], query)
            case [*_, "pods", name]:
                with self.server.changed:
                    self._answer(self.server.pod_named(name))
            case [*_, "jobs" | "services" as kind, _] if (made := self.server.made.get(_KINDS[kind])) is not None:
                self._answer(made)
            case _ if url.path in _DISCOVERY:
                self._answer(_DISCOVERY[url.path])
            case _:
                self._refuse(404, "NotFound", f"{url.path} not found")

    def do_POST(self) -> None:
        kind = urlsplit(self.path).path.rpartition("/")[2]
        if self._refused(f"create {kind}"):
            return
        made = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        made["metadata"]["uid"] = f"uid-of-{kind}"
        self.server.made[made["kind"]] = made
        self._answer(made, 201)

    def do_DELETE(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        kind = self.path.split("/")[-2]
        if not self._refused(f"delete {kind}"):
            self._answer(self.server.delete(_KINDS[kind]))

    def _log(self, pod: Pod, query: dict[str, str]) -> None:
        """All lines of the asked time's second and later, as Kubernetes does; then what comes, until the end."""
        cluster = self.server
        with cluster.changed:
            pod.log_requests.append(query)
            breaks = pod.breaks_after if len(pod.log_requests) == 1 else None
        self._send_lines(pod.lines[:breaks], query.get("sinceTime", "").removesuffix("Z"))
        with cluster.changed:
            if breaks is not None or pod.phase == "ended":
                return
            while pod.stays and "Job" not in cluster.deleted:
                cluster.changed.wait()
            if pod.last_line:
                self.wfile.write(f"2026-01-01T01:00:00.5Z {pod.last_line}\n".encode())
            pod.phase = "ended"

    def _send_lines(self, lines: list[str], since: str = "") -> None:
        stamped = [f"2026-01-01T00:00:{n // 4:02}.{n + 1:09}Z {line}\n" for n, line in enumerate(lines)]
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.end_headers()
        self.wfile.write("".join(line for line in stamped if line >= since).encode())
        self.wfile.flush()

    def _refused(self, what: str) -> bool:
        if what not in self.server.refusals:
            return False
        self._refuse(*self.server.refusals[what])
        return True

    def _refuse(self, code: int, reason: str, message: str) -> None:
        status = {"status": "Failure", "code": code, "reason": reason, "message": message}
        self._answer({"apiVersion": "v1", "kind": "Status", **status}, code)

    def _answer(self, value: dict[str, Any], code: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


_KINDS = {"jobs": "Job", "services": "Service"}


def _index(pod: str) -> int:
    return int(pod.split("-")[2])


def _resource(name: str, kind: str) -> dict[str, Any]:
    return {"name": name, "kind": kind, "namespaced": True, "verbs": ["create", "delete", "get", "list", "watch"]}


_BATCH = {"groupVersion": "batch/v1", "version": "v1"}
_DISCOVERY: dict[str, dict[str, Any]] = {
    "/version": {"major": "1", "minor": "32", "gitVersion": "v1.32.0"},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [{"name": "batch", "versions": [_BATCH], "preferredVersion": _BATCH}],
    },
    "/api/v1": {
        "kind": "APIResourceList",
        "groupVersion": "v1",
        "resources": [_resource("pods", "Pod"), _resource("services", "Service")],
    },
    "/apis/batch/v1": {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": "batch/v1",
        "resources": [_resource("jobs", "Job")],
    },
}


class Clusters:
    """Starts API servers for this test, and points kubectl to the newest."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._monkeypatch = folder, monkeypatch
        self.started: list[Cluster] = []

    def __call__(self, *pods: Pod, refusals: dict[str, tuple[int, str, str]] | None = None) -> Cluster:
        return self.serve(Cluster(list(pods), refusals))

    def serve(self, cluster: Cluster) -> Cluster:
        self.started.append(cluster)
        threading.Thread(target=cluster.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        self._monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(self._folder)))
        return cluster


@pytest.fixture
def start_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clusters]:
    monkeypatch.setenv("HOME", str(tmp_path))  # where kubectl caches what it learns of a cluster
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    clusters = Clusters(tmp_path, monkeypatch)
    yield clusters
    interrupts.clear()
    for cluster in clusters.started:
        cluster.shutdown()
        cluster.server_close()


def kubectl_dry_run(job: K8sJob) -> list[dict[str, Any]]:
    """The manifests as kubectl understands them."""
    words = ["kubectl", "create", "--dry-run=client", "--validate=false", "-f", "-", "-o", "json"]
    out = subprocess.run(words, input=manifest(job), capture_output=True, text=True, check=True, timeout=180).stdout
    found, at = [], 0
    while out[at:].strip():
        document, length = json.JSONDecoder().raw_decode(out[at:].lstrip())
        at += len(out[at:]) - len(out[at:].lstrip()) + length
        found.append(document)
    return found


# ---- kubectl


@needs_kubectl
def test_kubectl_reads_every_word_as_it_was_typed(start_cluster: Clusters) -> None:
    """Words that YAML could read as numbers, booleans, comments or variables reach the pod as text."""
    start_cluster()
    words = ["1e-3", "y", "no", "~", "null", "0x10", "0o7", "1_0", ".5", "-.5", "+1", "2026-01-01", "12:30", "#", "é"]
    words += ["a:b", "[x]", "{x}", "*", "&", "!", "|", ">", "%", "@", "`", "=", "<<", "-", "?", ",", "on", "True"]
    words += ["", " ", "two words", "two\nlines\n", "a: b", "tab\there", "'", '"', "\\", "- x", "$(HOME) $HOME $$"]
    _, job = kubectl_dry_run(dataclasses.replace(JOB, program=tuple(words), env={"A": "1e3", "B": "y", "C": "$(A)"}))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert [word.replace("$$", "$") for word in container["args"][-len(words) :]] == words
    assert container["args"][-1] == "$$(HOME) $$HOME $$$$"
    assert [variable["value"] for variable in container["env"][1:]] == ["1e3", "y", "$$(A)"]


@needs_kubectl
@pytest.mark.parametrize("job", [JOB, FULL], ids=["plain", "full"])
def test_kubectl_and_pyyaml_read_the_same(start_cluster: Clusters, job: K8sJob) -> None:
    """kubectl's own dry run reads the same documents from the text that were checked against the schemas."""
    start_cluster()
    for ours, theirs in zip(documents(job), kubectl_dry_run(job), strict=True):
        theirs["metadata"].setdefault("namespace", "default")
        ours["metadata"].setdefault("namespace", "default")
        assert theirs == ours


@needs_kubectl
def test_a_run_shows_the_lines_of_all_pods_and_returns_0(
    start_cluster: Clusters, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines of ranks are shown whole and once, each pod's in order; rollcall's own lines get the pod's name."""
    first = [f"0 │ step {n}" for n in range(50)]
    second = ["rollcall: waiting for node 0", *(f"4 │ step {n}" for n in range(50)), "  4 │ indented"]
    cluster = start_cluster(Pod(first), Pod(second))
    messages: list[str] = []
    assert run(JOB, messages.append) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("0 │")] == first
    assert [line for line in lines if not line.startswith("0 │")] == second[1:]
    assert "train-x-1: waiting for node 0" in messages
    assert messages[0] == "Job train-x is submitted: 2 pods with 4 ranks each"
    assert messages[-1] == (
        "Job train-x is complete; it is kept with its logs for 24 h 00 min"
        " (`kubectl delete job train-x` removes it now)"
    )
    assert cluster.deleted == []


@needs_kubectl
def test_the_service_goes_with_the_job(start_cluster: Clusters) -> None:
    """The Service is owned by the Job, so that Kubernetes removes both when the Job's time is over."""
    cluster = start_cluster(Pod())
    assert run(dataclasses.replace(JOB, nodes=1), lambda _: None) == 0
    (owner,) = cluster.made["Service"]["metadata"]["ownerReferences"]
    assert owner == {"apiVersion": "batch/v1", "kind": "Job", "name": "train-x", "uid": "uid-of-jobs"}
    kubernetes_validate.validate(cluster.made["Service"], "1.32", strict=True)


@needs_kubectl
def test_the_exit_code_is_that_of_the_first_pod_to_fail(start_cluster: Clusters) -> None:
    """The pod that failed earliest decides, not the one with the lowest number."""
    later, earlier = Pod(exit_code=1, ended_at="2026-01-01T00:00:09Z"), Pod(exit_code=3)
    earlier.ended_at = "2026-01-01T00:00:08Z"
    start_cluster(later, earlier)
    messages: list[str] = []
    assert run(JOB, messages.append) == 3
    assert messages[-2] == "train-x-1: exited with code 3"
    assert messages[-1].startswith("Job train-x failed; it is kept with its logs for 24 h 00 min")


@needs_kubectl
def test_a_traceback_stays_together(start_cluster: Clusters, capsys: pytest.CaptureFixture[str]) -> None:
    """A pod's message about a failed rank is shown as one piece, and not among the lines of ranks."""
    said = ["rollcall: its traceback:", "  Traceback (most recent call last):", "  ", "  ValueError: x", "  0 │ on"]
    start_cluster(Pod(said, exit_code=1))
    messages: list[str] = []
    assert run(dataclasses.replace(JOB, nodes=1), messages.append) == 1
    assert "train-x-0: its traceback:\n  Traceback (most recent call last):\n  \n  ValueError: x" in messages
    assert capsys.readouterr().out == "  0 │ on\n"


@needs_kubectl
def test_a_broken_connection_loses_and_repeats_no_line(
    start_cluster: Clusters, capsys: pytest.CaptureFixture[str]
) -> None:
    """When the connection to a log breaks while the pod runs, reading resumes at the same line."""
    pod = Pod([f"0 │ step {n}" for n in range(20)], breaks_after=7)
    start_cluster(pod)
    assert run(dataclasses.replace(JOB, nodes=1), lambda _: None) == 0
    assert capsys.readouterr().out.splitlines() == pod.lines
    assert "sinceTime" not in pod.log_requests[0]
    assert "sinceTime" in pod.log_requests[1]


@needs_kubectl
def test_pods_that_wait_say_why(start_cluster: Clusters) -> None:
    """A pod without a node and an image that needs a second try are reported, each once, and the run continues."""
    start_cluster(
        Pod(before=[UNSCHEDULABLE, UNSCHEDULABLE, waiting("ContainerCreating")]),
        Pod(before=[waiting("ErrImagePull", "no such host"), waiting("ImagePullBackOff", "Back-off")]),
    )
    messages: list[str] = []
    assert run(JOB, messages.append) == 0
    assert messages[1:-1] == [
        "train-x-0: waits for a node with room for it (Unschedulable: 0/3 nodes are available)",
        f"train-x-1: cannot pull image {IMAGE} (ErrImagePull: no such host)",
    ]


@needs_kubectl
@pytest.mark.parametrize(("reason", "pull_timeout_s"), [("InvalidImageName", 3600.0), ("ImagePullBackOff", 0.0)])
def test_an_image_that_cannot_be_pulled_ends_the_run(
    start_cluster: Clusters, reason: str, pull_timeout_s: float
) -> None:
    """An invalid name ends the run at once, a failing pull after the timeout; Job and Service are deleted."""
    cluster = start_cluster(Pod(before=[waiting(reason)], stays=True), Pod(stays=True))
    messages: list[str] = []
    assert run(JOB, messages.append, pull_timeout_s) == 1
    advice = "check --image, and that the cluster may pull it"
    assert f"train-x-0: cannot pull image {IMAGE} ({reason})" in messages
    assert messages[-2] == f"giving up: train-x-0: cannot pull image {IMAGE} ({reason}); {advice}"
    assert messages[-1] == "Job and Service train-x are deleted"
    assert cluster.deleted == ["Job", "Service"]


@needs_kubectl
@pytest.mark.parametrize(
    ("reason", "message", "sentence"),
    [
        ("StartError", 'exec: "rollcall": not found', "the image needs rollcall on its PATH"),
        ("OOMKilled", "", "train-x-0: ran out of memory (OOMKilled)"),
    ],
)
def test_what_kubernetes_knows_about_an_end_is_reported(
    start_cluster: Clusters, reason: str, message: str, sentence: str
) -> None:
    """An image without rollcall and a pod out of memory, which no log shows, are explained."""
    start_cluster(Pod(exit_code=128, reason=reason, message=message))
    messages: list[str] = []
    assert run(dataclasses.replace(JOB, nodes=1), messages.append) == 128
    assert sentence in messages[-2]


INTERRUPTED = """
import signal, sys
from rollcall.errors import say
from rollcall.linux.signals import received as interrupts
from rollcall.schedulers.k8s_manifest import K8sJob
from rollcall.schedulers.k8s_job import run
signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
sys.exit(run(K8sJob("train-x", "team/train:1.2", 2, 4, ("train.py",)), say))
"""


@needs_kubectl
def test_ctrl_c_deletes_job_and_service(start_cluster: Clusters) -> None:
    """SIGINT to the whole terminal deletes both, shows the pods' last output, ends with 130, and leaves no kubectl."""
    pods = [Pod(["0 │ here"], stays=True, last_line="0 │ saved"), Pod(["4 │ here"], stays=True)]
    cluster = start_cluster(*pods)
    words = [sys.executable, "-c", INTERRUPTED]
    mark = f"ROLLCALL_TEST_MARK={cluster.url}"
    env = {**os.environ, "ROLLCALL_TEST_MARK": cluster.url}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(words, env=env, start_new_session=True, **pipes)  # type: ignore[call-overload]
    try:
        assert process.stdout.readline().endswith("│ here\n")
        assert process.stdout.readline().endswith("│ here\n")
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=180)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 128 + signal.SIGINT
    assert out == "0 │ saved\n"
    assert "rollcall: interrupted: Job and Service train-x are deleted" in err
    assert cluster.deleted == ["Job", "Service"]
    assert until(lambda: not _marked(mark)), _marked(mark)


def _marked(mark: str) -> list[str]:
    """Command lines of living processes whose environment has this mark."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append((folder / "cmdline").read_text())
        except OSError:
            continue
    return found


@needs_kubectl
def test_a_closed_pipe_ends_the_run(start_cluster: Clusters) -> None:
    """`rollcall run … | head -1` deletes Job and Service, as it ends the ranks of a run on this host."""
    cluster = start_cluster(Pod(["0 │ here"] * 50_000, stays=True), Pod(stays=True))
    words = [sys.executable, "-c", INTERRUPTED]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        process.wait(timeout=180)
    finally:
        process.kill()
        process.wait()
        process.stderr.close()  # type: ignore[union-attr]
    assert process.returncode == 128 + signal.SIGPIPE
    assert cluster.deleted == ["Job", "Service"]


@needs_kubectl
def test_a_signal_before_the_start_starts_nothing(start_cluster: Clusters) -> None:
    """Ctrl-C before the Job is submitted ends with 130, without any request to the cluster."""
    cluster = start_cluster(Pod())
    interrupts.append(signal.SIGINT)
    assert run(JOB, lambda _: None) == 130
    assert cluster.made == {}


@needs_kubectl
def test_a_deleted_job_ends_the_run(start_cluster: Clusters) -> None:
    """`kubectl delete job` in another terminal is noticed and reported."""
    cluster = start_cluster(Pod(["0 │ here"], stays=True))
    messages: list[str] = []
    deleter = threading.Thread(target=lambda: until(lambda: cluster.pods[0].log_requests) and cluster.delete("Job"))
    deleter.start()
    code = run(dataclasses.replace(JOB, nodes=1), messages.append)
    deleter.join()
    assert messages[-1] == "Job train-x was deleted, and its pods with it"
    assert code == 143


REFUSALS = {
    "create jobs": (403, "Forbidden", 'jobs.batch is forbidden: User "me" cannot create resource "jobs"'),
    "create services": (403, "Forbidden", 'services is forbidden: User "me" cannot create resource "services"'),
    "get pods": (403, "Forbidden", 'pods is forbidden: User "me" cannot list resource "pods"'),
}


@needs_kubectl
@pytest.mark.parametrize("what", REFUSALS)
def test_missing_rights_are_one_sentence_and_nothing_stays(start_cluster: Clusters, what: str) -> None:
    """The sentence says which rights to ask for, and what was created before is deleted."""
    cluster = start_cluster(Pod(stays=True), refusals={what: REFUSALS[what]})
    with pytest.raises(UsageError, match=r"you may not do this in the namespace research \(.*\): ask for") as caught:
        run(FULL, lambda _: None)
    assert "\n" not in str(caught.value)
    assert REFUSALS[what][2] in str(caught.value)
    assert cluster.made == {}


@needs_kubectl
def test_logs_that_may_not_be_read_are_reported(start_cluster: Clusters) -> None:
    """Without the right to read logs the run is still followed to its end, and one line says why there is no output."""
    refusal = (403, "Forbidden", 'pods "x" is forbidden: User "me" cannot get resource "pods/log"')
    start_cluster(Pod(exit_code=3), Pod(exit_code=3), refusals={"get log": refusal})
    messages: list[str] = []
    assert run(JOB, messages.append) == 3
    assert sum("its output cannot be shown" in text for text in messages) == 1


@needs_kubectl
@pytest.mark.parametrize(
    "refusal", [(503, "ServiceUnavailable", "apiserver is restarting"), (401, "Unauthorized", "Unauthorized")]
)
def test_a_cluster_that_comes_back_is_waited_for(start_cluster: Clusters, refusal: tuple[int, str, str]) -> None:
    """A cluster that does not answer, or an expired login, is reported once, and neither ends nor deletes the run."""
    cluster = start_cluster(Pod(before=[UNSCHEDULABLE]))
    messages: list[str] = []

    def tell(text: str) -> None:
        messages.append(text)
        if "Unschedulable" in text:
            cluster.refusals["get pods"] = refusal
        if "rollcall keeps asking" in text:
            cluster.refusals.clear()

    assert run(dataclasses.replace(JOB, nodes=1), tell) == 0
    assert sum("the run may continue there" in text for text in messages) == 1
    assert cluster.deleted == []


@needs_kubectl
def test_a_job_that_cannot_be_deleted_is_reported(start_cluster: Clusters) -> None:
    """If the Job cannot be deleted after Ctrl-C, the message names the command to do it later."""
    start_cluster(Pod(stays=True), refusals={"delete jobs": (403, "Forbidden", "jobs is forbidden")})
    messages: list[str] = []

    def tell(text: str) -> None:
        messages.append(text)
        if "is submitted" in text:
            interrupts.append(signal.SIGINT)

    assert run(FULL, tell) == 130
    assert "could not be deleted, do it with `kubectl delete job,service train-x --namespace research`" in messages[-1]


OTHER_REFUSALS = {
    "no login": ((401, "Unauthorized", "Unauthorized"), "log in again"),
    "no namespace": ((404, "NotFound", 'namespaces "research" not found'), "there is no namespace research"),
    "a name that is taken": ((409, "AlreadyExists", 'jobs.batch "train-x" already exists'), "another with --name"),
    "a quota": ((403, "Forbidden", "jobs is forbidden: exceeded quota: team"), "has no room left"),
    "anything else": ((422, "Invalid", "spec.x: must be y"), r"kubectl create failed \(.*must be y\)"),
}


@needs_kubectl
@pytest.mark.parametrize("case", OTHER_REFUSALS)
def test_other_refusals_are_one_sentence(start_cluster: Clusters, case: str) -> None:
    """The sentence says what the cluster refuses, and what to do."""
    refusal, sentence = OTHER_REFUSALS[case]
    start_cluster(refusals={"create jobs": refusal})
    with pytest.raises(UsageError, match=sentence):
        run(FULL, lambda _: None)


@needs_kubectl
@pytest.mark.usefixtures("start_cluster")
def test_no_cluster_is_one_sentence() -> None:
    """Where kubectl is not set up, the sentence says how to choose a cluster."""
    with pytest.raises(UsageError, match=r"kubectl knows of no cluster .*use-context"):
        run(JOB, lambda _: None)


@needs_kubectl
def test_a_silent_cluster_is_one_sentence(start_cluster: Clusters) -> None:
    """The sentence says that the cluster does not answer."""
    cluster = start_cluster()
    cluster.shutdown()
    cluster.server_close()
    start_cluster.started.clear()
    with pytest.raises(UsageError, match="the cluster does not answer"):
        run(JOB, lambda _: None)


def test_no_kubectl_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without kubectl the sentence says to install it, or to submit the YAML on another machine."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=r"needs kubectl, .*install it .*--dry-run"):
        run(JOB, lambda _: None)


@needs_kubectl
def test_pods_run_real_ranks(
    start_cluster: Clusters, rollcall: Runner, free_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands of two pods make a world of four ranks, whose lines are shown here."""
    rollcall.script("import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])", "train.py")
    job = dataclasses.replace(JOB, slots=2, program=("train.py",), port=free_port)
    pods = [_run_pod(rollcall, job, index) for index in range(job.nodes)]
    outputs = [pod.communicate(timeout=180) for pod in pods]
    assert [pod.returncode for pod in pods] == [0, 0], outputs
    start_cluster(*(Pod(out.splitlines()) for out, _ in outputs))
    assert run(job, lambda _: None) == 0
    lines = sorted(line.strip() for line in capsys.readouterr().out.splitlines())
    assert lines == [f"{rank} │ rank {rank} of 4" for rank in range(4)]


def _run_pod(rollcall: Runner, job: K8sJob, index: int) -> "subprocess.Popen[str]":
    """What kubelet does: replace the variable, start the command. The names of pods mean this host here."""
    names = {"$(JOB_COMPLETION_INDEX)": str(index), job.master: "127.0.0.1"}
    command = [names.get(word, word) for word in (*container(job)["command"], *container(job)["args"])]
    assert command[0] == Path(ROLLCALL[0]).name
    return rollcall.start(*command[1:])
