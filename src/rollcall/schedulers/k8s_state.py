"""The state of a run's Job and pods, read from the JSON that kubectl prints."""

from dataclasses import dataclass
from typing import Any, Literal

from rollcall.schedulers.k8s_manifest import CONTAINER, K8sJob

# Errors that another try does not change.
_FINAL = {"InvalidImageName", "ErrImageNeverPull"}
_IMAGE = {"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError", *_FINAL}
_CONTAINER = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
_INDEX = "batch.kubernetes.io/job-completion-index"
_LONGEST_MESSAGE = 300


@dataclass(frozen=True)
class StartProblem:
    """Why a pod does not start. Kubernetes words it differently with each try; `kind` stays the same."""

    kind: Literal["image", "container", "node"]
    sentence: str
    is_final: bool = False

    @property
    def advice(self) -> str:
        return {
            "image": "check --image, and that the cluster may pull it",
            "container": "change what Kubernetes refuses: --dry-run prints the YAML",
            "node": "ask for less, or for fewer nodes",
        }[self.kind]

    @property
    def may_pass(self) -> bool:
        """Whether waiting can help: nodes become free, but a missing image stays missing."""
        return self.kind == "node"


@dataclass(frozen=True)
class Pod:
    """One pod at one moment."""

    name: str  # the name that kubectl takes
    host: str  # the name that rollcall prints
    index: int
    started: bool  # there are logs to read
    running: bool
    exit_code: int | None  # None: it has not ended
    ended_at: str  # to the second; times of one cluster sort as text
    deleted: bool  # it is being ended, most often by the Job after another pod failed
    end_message: str  # what Kubernetes knows about its end
    problem: StartProblem | None

    @property
    def failed(self) -> bool:
        return self.exit_code not in (None, 0)


@dataclass(frozen=True)
class K8sState:
    """Job and pods at one moment."""

    outcome: Literal["", "complete", "failed", "gone"]
    reason: str
    pods: tuple[Pod, ...]


def read(job: K8sJob, listing: dict[str, Any]) -> K8sState:
    """Parses what `kubectl get jobs,pods -o json` prints."""
    jobs = [item for item in listing["items"] if item["kind"] == "Job"]
    pods = [_pod(job, item) for item in listing["items"] if item["kind"] == "Pod"]
    ordered = tuple(sorted(pods, key=lambda pod: (pod.index, pod.name)))
    if not jobs or "deletionTimestamp" in jobs[0]["metadata"]:
        return K8sState("gone", "", ordered)
    for condition in jobs[0].get("status", {}).get("conditions") or ():
        if condition["status"] == "True" and condition["type"] in ("Complete", "Failed"):
            return K8sState("complete" if condition["type"] == "Complete" else "failed", _why(condition), ordered)
    return K8sState("", "", ordered)


def first_failure(pods: list[Pod]) -> Pod | None:
    """The pod that failed first, without being deleted."""
    return min((pod for pod in pods if pod.failed), key=lambda p: (p.deleted, p.ended_at, p.index), default=None)


def _pod(job: K8sJob, item: dict[str, Any]) -> Pod:
    metadata, status = item["metadata"], item.get("status", {})
    index = int(metadata.get("annotations", {}).get(_INDEX, 0))
    container: dict[str, Any] = next((c for c in status.get("containerStatuses") or () if c["name"] == CONTAINER), {})
    state = container.get("state", {})
    ended = state.get("terminated")
    return Pod(
        name=metadata["name"],
        host=job.host(index),
        index=index,
        started=bool(ended or state.get("running")),
        running="running" in state,
        exit_code=_exit_code(status, ended),
        ended_at=(ended or {}).get("finishedAt") or "",
        deleted="deletionTimestamp" in metadata,
        end_message=_end_message(job, status, ended or {}),
        problem=_start_problem(job, status, state.get("waiting", {})),
    )


def _exit_code(status: dict[str, Any], ended: dict[str, Any] | None) -> int | None:
    if ended is not None:
        return int(ended["exitCode"])
    # Evicted from its node, or lost with it: no container is left that has a code.
    return 1 if status.get("phase") == "Failed" else None


def _end_message(job: K8sJob, status: dict[str, Any], ended: dict[str, Any]) -> str:
    if ended.get("reason") in ("StartError", "ContainerCannotRun"):
        return (
            f"cannot start rollcall in image {job.image} ({_short(ended.get('message', ''))}):"
            " the image needs rollcall on its PATH"
        )
    if ended.get("reason") == "OOMKilled":
        return "ran out of memory (OOMKilled): give each pod more with --memory, or use fewer ranks"
    if status.get("reason"):
        return f"was ended by Kubernetes ({_why(status)})"
    return ""


def _start_problem(job: K8sJob, status: dict[str, Any], waiting: dict[str, Any]) -> StartProblem | None:
    reason = waiting.get("reason", "")
    if reason in _IMAGE:
        return StartProblem("image", f"cannot pull image {job.image} ({_why(waiting)})", reason in _FINAL)
    if reason in _CONTAINER:
        return StartProblem("container", f"cannot start its container ({_why(waiting)})")
    for condition in status.get("conditions") or ():
        if (condition["type"], condition["status"]) == ("PodScheduled", "False"):
            return StartProblem("node", f"waits for a node with room for it ({_why(condition)})")
    return None


def _why(status: dict[str, Any]) -> str:
    """`reason: message`, or the one of them that exists."""
    return ": ".join(part for part in (status.get("reason", ""), _short(status.get("message", ""))) if part)


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST_MESSAGE else text[: _LONGEST_MESSAGE - 2] + " …"
