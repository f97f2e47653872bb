"""One run on Kubernetes, seen from here: submit it, show what its pods say, and say how it ended."""

import contextlib
import queue
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from rollcall.coordinator.broken_pipe import mute
from rollcall.coordinator.signals import received as interrupts
from rollcall.errors import RollcallError
from rollcall.protocol.exit_codes import how_it_ended
from rollcall.schedulers import k8s_state
from rollcall.schedulers.k8s_manifest import LABEL, Job, batch_job, check, service
from rollcall.schedulers.k8s_state import Pod, State
from rollcall.schedulers.kubectl import ForbiddenError, Kubectl

PATIENCE_S = 120.0  # with an image that cannot be pulled: kubelet tries four times meanwhile
_TICK_S = 0.05
_LOOK_S = 1.0  # between looks at the pods while some of them start or end,
_RARELY_S = 10.0  # and while all run: the end of a log calls for a look at once,
_AT_ONCE_S = 0.2  # but not more often than this
_QUIET_S = 30.0  # of waiting without a word
_DRAIN_S = 15.0  # for the last lines of pods that have ended
_OURS = "rollcall: "
_OF_RANKS = re.compile(r" *\d[\d,-]* │ ")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\S+")

Tell = Callable[[str], None]


@dataclass(frozen=True)
class _Said:
    """A line of ranks, or of whatever else runs in the pod."""

    text: str


@dataclass(frozen=True)
class _Told:
    """What rollcall says in a pod, which does not name it."""

    host: str
    text: str


@dataclass(frozen=True)
class _Closed:
    """A reading of a pod's log is over, at its end or for a reason."""

    pod: Pod
    why: RollcallError | None = None


_Message = _Said | _Told | _Closed | State | RollcallError


@dataclass
class _Log:
    """How far a pod's log has been read. What was begun after the pod's end reads all there is."""

    last_time: str = ""
    open: bool = False
    final: bool = False


def run(job: Job, tell: Tell, patience_s: float = PATIENCE_S) -> int:
    """Run the job on the cluster that kubectl knows; the exit code is that of the first pod to fail."""
    check(job)
    if interrupts:
        return 128 + interrupts.pop(0)
    with Kubectl(job.namespace) as kubectl:
        _submit(job, kubectl)
        tell(f"Job {job.name} is submitted: {job.nodes} pod{'s' * (job.nodes > 1)} with {job.ranks}")
        return _Run(job, kubectl, tell, patience_s).to_the_end()


def _submit(job: Job, kubectl: Kubectl) -> None:
    """The Job, and then the Service, so that the Job can own it: Kubernetes removes them together."""
    uid = kubectl.create(batch_job(job))
    try:
        kubectl.create(service(job, owner_uid=uid))
    except RollcallError:
        with contextlib.suppress(RollcallError):
            kubectl.delete(f"job/{job.name}")
        raise


class _Run:
    """A submitted job. Threads read the logs and look at the pods; all they find comes through one queue."""

    def __init__(self, job: Job, kubectl: Kubectl, tell: Tell, patience_s: float) -> None:
        self._job, self._kubectl, self._tell, self._patience_s = job, kubectl, tell, patience_s
        self._messages: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        self._look_now = threading.Event()
        self._look_every_s, self._pause_s = _LOOK_S, _AT_ONCE_S
        self._logs: dict[str, _Log] = {}
        self._pods: dict[str, Pod] = {}  # as last seen: when one fails, the Job removes the others
        self._told: set[tuple[str, str]] = set()
        self._trouble_since: dict[tuple[str, str], float] = {}
        self._begun = time.monotonic()
        self._newest: State | None = None
        self._end: State | None = None

    def to_the_end(self) -> int:
        threading.Thread(target=self._look, name="pods", daemon=True).start()
        try:
            while self._end is None:
                if interrupts:
                    return self._interrupted(interrupts.pop(0))
                self._step()
                if (lost := self._lost()) is not None:
                    return self._give_up(lost)
            self._drain(_DRAIN_S)
        except BrokenPipeError:  # `rollcall run … | head` has seen enough
            mute()
            return self._interrupted(signal.SIGPIPE)
        return self._conclude(self._end)

    # ---- what comes

    def _step(self) -> None:
        try:
            message = self._messages.get(timeout=_TICK_S)
        except queue.Empty:
            sys.stdout.flush()
            return
        match message:
            case _Said(text):
                sys.stdout.write(f"{text}\n")
            case _Told(host, text):
                sys.stdout.flush()
                self._tell(f"{host}: {text}")
            case _Closed(pod, why):
                self._logs[pod.name].open = False
                self._note_closed(pod, why)
            case State():
                self._note(message)
            case ForbiddenError() if self._newest is None:
                self._delete()
                raise message
            case RollcallError():  # a login that has run out must not end a training of many days
                self._tell_once("cluster", "silent", f"{message}; the run may go on there, and I keep asking")

    def _note(self, state: State) -> None:
        self._told.discard(("cluster", "silent"))
        self._newest = state
        self._pods.update({pod.name: pod for pod in state.pods})
        for pod in state.pods:
            self._read_on(pod)
        self._tell_troubles(state.pods)
        running = sum(pod.running for pod in state.pods)
        self._look_every_s = _RARELY_S if running == self._job.nodes else _LOOK_S
        if state.outcome and self._end is None:
            self._end = state

    def _note_closed(self, pod: Pod, why: RollcallError | None) -> None:
        self._look_now.set()
        if why is not None:
            self._pause_s = _LOOK_S  # else a log that cannot be read would be asked for without end
        if isinstance(why, ForbiddenError):  # all else ends with the pod, or is tried again
            self._tell_once("cluster", "logs", f"{pod.host}: what it says cannot be shown: {why}")

    def _tell_troubles(self, pods: tuple[Pod, ...]) -> None:
        now = time.monotonic()
        troubles = {(pod.host, pod.trouble.kind): pod.trouble for pod in pods if pod.trouble}
        self._trouble_since = {key: self._trouble_since.get(key, now) for key in troubles}
        for (host, kind), trouble in troubles.items():
            self._tell_once(host, kind, f"{host}: {trouble.sentence}")
        if now - self._begun < _QUIET_S:
            return
        if len(pods) < self._job.nodes:
            missing = f"Kubernetes has made {len(pods)} of {self._job.nodes} pods so far"
            self._tell_once("cluster", "pods", f"{missing}: `kubectl describe job {self._job.name}` says why")
        for pod in pods:
            if not pod.started and pod.trouble is None and pod.exit_code is None:
                self._tell_once(pod.host, "slow", f"{pod.host}: has a node, and is still being made ready there")

    def _tell_once(self, about: str, kind: str, sentence: str) -> None:
        if (about, kind) not in self._told:
            self._told.add((about, kind))
            self._tell(sentence)

    # ---- threads

    def _look(self) -> None:
        while True:
            try:
                selector = f"{LABEL}={self._job.name}"
                self._messages.put(k8s_state.read(self._job, self._kubectl.get("jobs,pods", selector)))
            except RollcallError as error:
                if self._kubectl.closed:
                    return
                self._messages.put(error)
            time.sleep(self._pause_s)
            self._look_now.wait(self._look_every_s)
            self._look_now.clear()

    def _read_on(self, pod: Pod) -> None:
        """Read a pod's log, unless that is being done or has been: connections break in runs of many hours."""
        log = self._logs.setdefault(pod.name, _Log())
        if pod.started and not log.open and not log.final:
            log.open, log.final = True, pod.exit_code is not None
            threading.Thread(target=self._read, args=(pod, log), name=pod.host, daemon=True).start()

    def _read(self, pod: Pod, log: _Log) -> None:
        try:
            for message in _paragraphs(pod.host, _new_lines(log, self._kubectl.logs(pod.name, log.last_time))):
                self._messages.put(message)
        except RollcallError as error:
            self._messages.put(_Closed(pod, error))
        else:
            self._messages.put(_Closed(pod))

    # ---- how it ends

    def _drain(self, limit_s: float) -> None:
        """Show what is still to come of the logs."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline and not interrupts and not (self._messages.empty() and self._all_read()):
            self._step()
        sys.stdout.flush()

    def _all_read(self) -> bool:
        pods = self._newest.pods if self._newest else ()
        there = [self._logs[pod.name] for pod in pods if pod.started]
        return all(log.final for log in there) and not any(log.open for log in self._logs.values())

    def _conclude(self, end: State) -> int:
        if end.outcome == "complete":
            self._tell(f"Job {self._job.name} is complete; {self._kept()}")
            return 0
        failed = k8s_state.first_failure(list(self._pods.values()))
        if failed is not None and failed.exit_code is not None:
            self._tell(f"{failed.host}: {failed.last_words or how_it_ended(failed.exit_code)}")
        if end.outcome == "gone":
            self._tell(f"somebody has deleted Job {self._job.name}, and its pods with it")
        else:
            why = f" ({end.reason})" if failed is None and end.reason else ""
            self._tell(f"Job {self._job.name} failed{why}; {self._kept()}")
        return 1 if failed is None or failed.exit_code is None else failed.exit_code

    def _kept(self) -> str:
        return (
            f"it is kept with its logs for {_duration(self._job.ttl_s)}"
            f" (`kubectl delete job {self._job.name}{self._in_namespace()}` removes it now)"
        )

    def _lost(self) -> str | None:
        """Why the run cannot begin any more."""
        for pod in self._pods.values():
            trouble = pod.trouble
            if trouble is None or trouble.mends_itself:
                continue
            since = self._trouble_since.get((pod.host, trouble.kind))
            if since is not None and (trouble.hopeless or time.monotonic() - since >= self._patience_s):
                return f"{pod.host}: {trouble.sentence}; {trouble.advice}"
        return None

    def _give_up(self, why: str) -> int:
        self._tell(f"giving up: {why}")
        if self._delete():
            self._tell(f"Job and Service {self._job.name} are deleted")
        return 1

    def _interrupted(self, number: int) -> int:
        if self._delete():
            self._tell(
                f"interrupted: Job and Service {self._job.name} are deleted, and the pods are asked to end"
                " (Ctrl-C again: do not wait for their last words)"
            )
            self._drain(self._job.grace_s + _DRAIN_S)
        return 128 + number

    def _delete(self) -> bool:
        try:
            self._kubectl.delete(f"job/{self._job.name}", f"service/{self._job.name}")
        except RollcallError as error:
            by_hand = f"`kubectl delete job,service {self._job.name}{self._in_namespace()}`"
            self._tell(f"Job and Service {self._job.name} could not be deleted, do it with {by_hand}: {error}")
            return False
        return True

    def _in_namespace(self) -> str:
        return f" --namespace {self._job.namespace}" if self._job.namespace else ""


def _new_lines(log: _Log, lines: Iterable[str]) -> Iterator[str]:
    """Lines without their times, and without those read before: Kubernetes tells times apart by the second only."""
    read_before = log.last_time
    for line in lines:
        when, _, text = line.partition(" ")
        if not _TIME.fullmatch(when):  # kubelet's own words, when it has no log
            yield line
        elif _sortable(when) > _sortable(read_before):
            log.last_time = when
            yield text


def _sortable(when: str) -> str:
    return when.rstrip("Z")  # which would come after the digits of a longer fraction


def _paragraphs(host: str, lines: Iterable[str]) -> Iterator[_Said | _Told]:
    """Lines as they are, but for those of rollcall in the pod: `its traceback:` stays together with what follows."""
    held: list[str] = []
    for line in lines:
        if held and line.startswith("  ") and not _OF_RANKS.match(line):
            held.append(line)
            continue
        if held:
            yield _Told(host, "\n".join(held))
            held = []
        if not line.startswith(_OURS):
            yield _Said(line)
        elif line.endswith(":"):
            held = [line.removeprefix(_OURS)]
        else:
            yield _Told(host, line.removeprefix(_OURS))
    if held:
        yield _Told(host, "\n".join(held))


def _duration(seconds: int) -> str:
    return f"{seconds / 3600:g} h" if seconds >= 3600 else f"{seconds} s"
