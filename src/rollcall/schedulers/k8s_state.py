"""What Kubernetes says of a run's Job and its pods, made from its JSON into what we want to know. Pure."""

from dataclasses import dataclass
from typing import Any, Literal

from rollcall.schedulers.k8s_manifest import CONTAINER, Job

# Retrying will not mend these.
_HOPELESS = {"InvalidImageName", "ErrImageNeverPull"}
_IMAGE = {"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError", *_HOPELESS}
_CONTAINER = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
_INDEX = "batch.kubernetes.io/job-completion-index"
_MOST_OF_A_MESSAGE = 300


@dataclass(frozen=True)
class Trouble:
    """Why a pod does not start. `kind` stays the same while Kubernetes tries again and words it differently."""

    kind: Literal["image", "container", "room"]
    sentence: str
    hopeless: bool = False

    @property
    def advice(self) -> str:
        return {
            "image": "check --image, and that the cluster may pull it",
            "container": "change what it does not like: --dry-run prints the YAML",
            "room": "ask for less, or for fewer nodes",
        }[self.kind]

    @property
    def mends_itself(self) -> bool:
        """A queue moves on and a cluster grows; an image that is not there stays away."""
        return self.kind == "room"


@dataclass(frozen=True)
class Pod:
    """One pod at one moment."""

    name: str  # Kubernetes' own, for kubectl
    host: str  # ours, as in the lines of rollcall
    index: int
    started: bool  # there are logs to read
    running: bool
    exit_code: int | None  # None: it has not ended
    ended_at: str  # to the second; times of one cluster sort as text
    deleted: bool  # somebody ends it, most often the Job, since another pod has failed
    last_words: str  # what Kubernetes adds to its end
    trouble: Trouble | None

    @property
    def failed(self) -> bool:
        return self.exit_code not in (None, 0)


@dataclass(frozen=True)
class State:
    """Job and pods at one moment."""

    outcome: Literal["", "complete", "failed", "gone"]
    reason: str
    pods: tuple[Pod, ...]


def read(job: Job, listing: dict[str, Any]) -> State:
    """From what `kubectl get jobs,pods -o json` prints."""
    jobs = [item for item in listing["items"] if item["kind"] == "Job"]
    pods = [_pod(job, item) for item in listing["items"] if item["kind"] == "Pod"]
    ordered = tuple(sorted(pods, key=lambda pod: (pod.index, pod.name)))
    if not jobs or "deletionTimestamp" in jobs[0]["metadata"]:
        return State("gone", "", ordered)
    for condition in jobs[0].get("status", {}).get("conditions") or ():
        if condition["status"] == "True" and condition["type"] in ("Complete", "Failed"):
            return State("complete" if condition["type"] == "Complete" else "failed", _why(condition), ordered)
    return State("", "", ordered)


def first_failure(pods: list[Pod]) -> Pod | None:
    """Where it began: the pod that failed by itself, and before the others."""
    return min((pod for pod in pods if pod.failed), key=lambda p: (p.deleted, p.ended_at, p.index), default=None)


def _pod(job: Job, item: dict[str, Any]) -> Pod:
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
        last_words=_last_words(job, status, ended or {}),
        trouble=_trouble(job, status, state.get("waiting", {})),
    )


def _exit_code(status: dict[str, Any], ended: dict[str, Any] | None) -> int | None:
    if ended is not None:
        return int(ended["exitCode"])
    # Put out of its node, or lost with it: no container is left to have a code.
    return 1 if status.get("phase") == "Failed" else None


def _last_words(job: Job, status: dict[str, Any], ended: dict[str, Any]) -> str:
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


def _trouble(job: Job, status: dict[str, Any], waiting: dict[str, Any]) -> Trouble | None:
    reason = waiting.get("reason", "")
    if reason in _IMAGE:
        return Trouble("image", f"cannot pull image {job.image} ({_why(waiting)})", reason in _HOPELESS)
    if reason in _CONTAINER:
        return Trouble("container", f"cannot start its container ({_why(waiting)})")
    for condition in status.get("conditions") or ():
        if (condition["type"], condition["status"]) == ("PodScheduled", "False"):
            return Trouble("room", f"waits for a node with room for it ({_why(condition)})")
    return None


def _why(told: dict[str, Any]) -> str:
    """`reason: message`, as far as they are there."""
    return ": ".join(part for part in (told.get("reason", ""), _short(told.get("message", ""))) if part)


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _MOST_OF_A_MESSAGE else text[: _MOST_OF_A_MESSAGE - 2] + " …"
