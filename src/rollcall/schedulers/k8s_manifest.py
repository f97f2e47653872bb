"""The manifests of a run: an Indexed Job with one pod per host, and a headless Service that gives the pods names.

`--dry-run` prints the YAML, and k8s_job.py submits it.
"""

import math
import re
import secrets
import shlex
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

import yaml

from rollcall.errors import LostHostError, UsageError
from rollcall.protocol.plan import DEFAULT_PORT, REJOINS, Plan
from rollcall.units import plural

LABEL = "rollcall/run"  # on Job, Service and pods; its value is the name of the Job
CONTAINER = "rollcall"
_COUNTED = {"gpu": "one rank per GPU", "cpu": "one rank per core", "auto": "one rank per GPU, or else per core"}
_INDEX = "JOB_COMPLETION_INDEX"
_GPU = "nvidia.com/gpu"
_MOST_OF_A_NAME = 63  # the limit of a DNS label, such as a pod's host name
_MOST_OF_A_STEM = 40
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # the rule for Services, which is stricter than that for Jobs
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_VARIABLE = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_OBJECT = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
_TAINT = re.compile(r"[A-Za-z0-9][-._/A-Za-z0-9]*(=[-._A-Za-z0-9]*)?")
_SHM = "/dev/shm"
_QUANTITY = re.compile(r"\d+(\.\d+)?(m|[kMGTPE]|[KMGTPE]i)?")
_DAY_S = 24 * 60 * 60
_SHUTDOWN_S = 20  # after the ranks' grace: rollcall ends the processes they left running, and reports the end


@dataclass(frozen=True)
class K8sJob:
    """One run on Kubernetes. `options` and `program` are for the `rollcall run` inside each pod."""

    name: str
    image: str
    nodes: int
    slots: int | str  # or gpu, cpu, auto: counted in the pod
    program: tuple[str, ...]  # and its arguments, as from Program.run_arguments()
    max_restarts: int = 0
    options: tuple[str, ...] = ()  # further ones, such as ("--preload", "transformers")
    env: Mapping[str, str] = field(default_factory=dict)
    namespace: str | None = None  # None: that of kubectl's context
    gpus: int = 0  # per pod, as all that follows
    cpu: str | None = None
    memory: str | None = None
    workdir: str | None = None  # None: that of the image
    port: int = DEFAULT_PORT
    grace_s: float = Plan.grace_s
    volumes: tuple[str, ...] = ()  # CLAIM:FOLDER
    secrets: tuple[str, ...] = ()  # names: their values become variables
    shm: str | None = None  # the most that /dev/shm may take
    tolerations: tuple[str, ...] = ()  # KEY or KEY=VALUE of a node's taint
    priority: str | None = None  # the name of a PriorityClass
    ttl_s: int = _DAY_S  # how long a finished Job and its logs are kept

    @property
    def master(self) -> str:
        """The address of the first pod, by the name that the Service gives it."""
        return f"{self.host(0)}.{self.name}"

    @property
    def ranks(self) -> str:
        """How many in each pod, in words."""
        return _COUNTED.get(str(self.slots)) or f"{plural(int(self.slots), 'rank')} each"

    def host(self, index: int) -> str:
        """The host name of a pod, also inside it."""
        return f"{self.name}-{index}"


def name_for(target: str) -> str:
    """A unique name for the Job of this script, module or command."""
    stem = PurePath(target).name.removesuffix(".py").lower()
    stem = re.sub(r"[^a-z0-9]+", "-", stem)[:_MOST_OF_A_STEM].strip("-")
    if not stem[:1].isalpha():
        stem = f"run-{stem}".strip("-")
    return f"{stem}-{secrets.token_hex(3)}"


def check(job: K8sJob) -> K8sJob:
    """The job, if Kubernetes can accept it."""
    if job.nodes < 1:
        raise UsageError(f"--nodes {job.nodes} leaves no host to run on: use 1 or more")
    if job.slots not in _COUNTED and (isinstance(job.slots, str) or job.slots < 1):
        raise UsageError(f"-n {job.slots} is no number of ranks for a pod: use 1 or more, or {', '.join(_COUNTED)}")
    if job.max_restarts < 0:
        raise UsageError(f"--max-restarts {job.max_restarts} is below zero: use 0 for none")
    if job.gpus < 0:
        raise UsageError(f"--gpus {job.gpus} is below zero: use 0 for none")
    if not 1 <= job.port <= 65535:
        raise UsageError(f"--master-port {job.port} is no port: use one from 1024 to 65535, such as {DEFAULT_PORT}")
    _check_image(job.image)
    _check_name(job)
    if job.namespace is not None and not _NAMESPACE.fullmatch(job.namespace):
        raise UsageError(f"--namespace {job.namespace} cannot be one: use small letters, digits and dashes")
    for option, amount in (("--cpu", job.cpu), ("--memory", job.memory), ("--shm", job.shm)):
        if amount is not None and not _QUANTITY.fullmatch(amount):
            raise UsageError(f"{option} {amount} is not an amount: use one such as {_EXAMPLES[option]}")
    _check_pod(job)
    for name in job.env:
        if not _VARIABLE.fullmatch(name):
            raise UsageError(f"--env {name!r} cannot be the name of a variable: use letters, digits and _")
    return job


_EXAMPLES = {"--cpu": "4 or 500m", "--memory": "16Gi or 512Mi", "--shm": "16Gi or 512Mi"}


def _check_pod(job: K8sJob) -> None:
    folders = [volume.partition(":")[2] for volume in job.volumes]
    for volume, folder in zip(job.volumes, folders, strict=True):
        if not _OBJECT.fullmatch(volume.partition(":")[0]) or not folder.startswith("/"):
            raise UsageError(f"--volume {volume} is not CLAIM:FOLDER: use a claim and a whole path, such as data:/data")
        if folders.count(folder) > 1 or folder == _SHM:
            raise UsageError(f"--volume {volume} is not the only one at {folder}: give each volume a folder of its own")
    names = [("--secret", name) for name in job.secrets] + [("--priority", job.priority)] * (job.priority is not None)
    for option, name in names:
        if not _OBJECT.fullmatch(name or ""):
            raise UsageError(f"{option} {name} cannot be a name: use small letters, digits, dashes and dots")
    for taint in job.tolerations:
        if not _TAINT.fullmatch(taint):
            raise UsageError(f"--toleration {taint} is no KEY or KEY=VALUE: use one such as nvidia.com/gpu")


def _check_image(image: str) -> None:
    if not image:
        raise UsageError("--kubernetes needs --image: a container image that has rollcall and your program in it")
    if re.search(r"\s", image) or not image.isprintable():
        raise UsageError(f"--image {image!r} has a space in it, and no image has: use a name such as team/train:1.2")
    if re.search(r"[A-Z]", re.split(r"[:@]", image.rpartition("/")[2])[0]):
        raise UsageError(f"--image {image} has capital letters in its name, and no image has: use small ones there")


def _check_name(job: K8sJob) -> None:
    if not _NAME.fullmatch(job.name):
        raise UsageError(
            f"--name {job.name!r} cannot name a Job: use small letters, digits and dashes, and a letter at the front"
        )
    longest = job.host(job.nodes - 1)
    if len(longest) > _MOST_OF_A_NAME:
        spare = _MOST_OF_A_NAME - len(longest) + len(job.name)
        raise UsageError(
            f"--name {job.name} has {len(job.name)} letters, which makes the pods' host names longer than"
            f" {_MOST_OF_A_NAME}: use at most {spare}"
        )


def manifest(job: K8sJob) -> str:
    """Service and Job as YAML for `kubectl create -f`, made to be read and changed."""
    check(job)
    pods = plural(job.nodes, "pod")
    return "\n".join(
        [
            f"# {pods} with {job.ranks}, of {_one_line(shlex.join(job.program))}",
            "# Made by rollcall. Submit with `kubectl create -f FILE`, end and remove with `kubectl delete -f FILE`;",
            f"# read along with `kubectl logs --follow --max-log-requests {job.nodes} --selector {LABEL}={job.name}`.",
            "---",
            "# Gives each pod a name that the others can look up before it is ready: no pod is until all have started.",
            service(job) + "---",
            f"# One pod per host. Pod 0, {job.master}, is the master.",
            batch_job(job),
        ]
    )


def service(job: K8sJob, owner_uid: str | None = None) -> str:
    """The Service alone. With a uid it belongs to the Job: Kubernetes deletes it with the Job."""
    metadata = _metadata(job)
    if owner_uid is not None:
        metadata["ownerReferences"] = [
            {"apiVersion": "batch/v1", "kind": "Job", "name": job.name, "uid": owner_uid},
        ]
    return _yaml(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": True,
                "selector": {LABEL: job.name},
                "ports": [{"name": "rendezvous", "port": job.port}],
            },
        }
    )


def batch_job(job: K8sJob) -> str:
    """The Job alone."""
    return _yaml(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": _metadata(job),
            "spec": {
                "completionMode": "Indexed",
                "completions": job.nodes,
                "parallelism": job.nodes,
                **_restarts(job),
                "ttlSecondsAfterFinished": job.ttl_s,
                "template": {"metadata": {"labels": {LABEL: job.name}}, "spec": _pod(job)},
            },
        }
    )


def _restarts(job: K8sJob) -> dict[str, Any]:
    """With restarts, a pod that is lost comes back and takes its old place; pod 0 takes all with it. If a rank fails,
    rollcall restarts all ranks in their pods, and Kubernetes does not begin that anew."""
    if not job.max_restarts:
        return {"backoffLimit": 0}
    lost = [LostHostError.exit_code, 128 + signal.SIGKILL, 128 + signal.SIGTERM]
    rules = [
        # Evicted, preempted, or its node is gone: that is not the run's fault, and does not count.
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": {"containerName": CONTAINER, "operator": "NotIn", "values": lost}},
    ]
    return {"backoffLimit": job.max_restarts * job.nodes, "podFailurePolicy": {"rules": rules}}


def _metadata(job: K8sJob) -> dict[str, Any]:
    namespace = {} if job.namespace is None else {"namespace": job.namespace}
    return {"name": job.name, **namespace, "labels": {LABEL: job.name}}


def _pod(job: K8sJob) -> dict[str, Any]:
    return {
        "restartPolicy": "Never",
        "subdomain": job.name,
        "terminationGracePeriodSeconds": math.ceil(job.grace_s) + _SHUTDOWN_S,
        "containers": [_container(job)],
        # DataLoader workers pass their batches through it, and the default of 64 MiB is too little.
        "volumes": [
            {"name": "shm", "emptyDir": {"medium": "Memory", **({"sizeLimit": job.shm} if job.shm else {})}},
            *(
                {"name": f"volume-{number}", "persistentVolumeClaim": {"claimName": volume.partition(":")[0]}}
                for number, volume in enumerate(job.volumes)
            ),
        ],
        **({"tolerations": [_toleration(taint) for taint in job.tolerations]} if job.tolerations else {}),
        **({"priorityClassName": job.priority} if job.priority else {}),
    }


def _toleration(taint: str) -> dict[str, str]:
    key, equals, value = taint.partition("=")
    return {"key": key, "operator": "Equal", "value": value} if equals else {"key": key, "operator": "Exists"}


def _container(job: K8sJob) -> dict[str, Any]:
    workdir = {} if job.workdir is None else {"workingDir": job.workdir}
    resources = _resources(job)
    return {
        "name": CONTAINER,
        "image": job.image,
        **workdir,
        "command": _FlowList(["rollcall", "run"]),
        "args": _FlowList(_arguments(job)),
        "env": [
            # Kubernetes sets it anyway, but `args` can use only variables that are listed here.
            {"name": _INDEX, "valueFrom": {"fieldRef": {"fieldPath": _INDEX_FIELD}}},
            *([{"name": REJOINS, "value": "1"}] if job.max_restarts else []),
            *({"name": name, "value": _literal(value)} for name, value in job.env.items()),
        ],
        **({"envFrom": [{"secretRef": {"name": name}} for name in job.secrets]} if job.secrets else {}),
        **({"resources": resources} if resources else {}),
        "volumeMounts": [
            {"name": "shm", "mountPath": _SHM},
            *(
                {"name": f"volume-{number}", "mountPath": volume.partition(":")[2]}
                for number, volume in enumerate(job.volumes)
            ),
        ],
    }


# The annotation, since clusters before 1.28 have no label of this name.
_INDEX_FIELD = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def _arguments(job: K8sJob) -> list[str]:
    network = {
        "--nnodes": job.nodes,
        "--node-rank": f"$({_INDEX})",
        "--master-addr": job.master,
        "--master-port": job.port,
        "-n": job.slots,
        **({"--max-restarts": job.max_restarts} if job.max_restarts else {}),
        **({"--grace": f"{job.grace_s:g}"} if job.grace_s != Plan.grace_s else {}),
    }
    ours = [str(word) for pair in network.items() for word in pair]
    return [*ours, *map(_literal, job.options), *map(_literal, job.program)]


def _literal(word: str) -> str:
    """A word in which Kubernetes replaces no `$(NAME)` by a variable's value."""
    return word.replace("$", "$$")


def _resources(job: K8sJob) -> dict[str, Any]:
    # No limit on the CPU: it would slow ranks down even where cores are idle.
    requests = {"cpu": job.cpu, "memory": job.memory}
    limits = {"memory": job.memory, _GPU: str(job.gpus) if job.gpus else None}
    both = {
        kind: {name: amount for name, amount in amounts.items() if amount is not None}
        for kind, amounts in (("requests", requests), ("limits", limits))
    }
    return {kind: amounts for kind, amounts in both.items() if amounts}


def _one_line(text: str) -> str:
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


# ---- YAML


class _FlowList(list[str]):
    """Words to be written on one line."""


class _Dumper(yaml.SafeDumper):
    """Indents lists below their key, and writes no aliases."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


# kubectl reads more words as numbers and booleans than PyYAML does, such as 1e-3 and y: they need quotes.
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+.]*\d.*", re.DOTALL), list("-+.0123456789"))
_Dumper.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"[yYnN]$"), list("yYnN"))
_Dumper.add_representer(
    _FlowList, lambda dumper, words: dumper.represent_sequence("tag:yaml.org,2002:seq", words, flow_style=True)
)


def _yaml(document: dict[str, Any]) -> str:
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
