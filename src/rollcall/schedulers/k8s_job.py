"""Submits a run to Kubernetes, shows the output of its pods, and reports how it ended."""

import contextlib
import queue
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from rollcall.errors import RollcallError
from rollcall.linux.signals import received as interrupts
from rollcall.linux.standard_streams import discard_broken_output
from rollcall.protocol.exit_codes import how_it_ended
from rollcall.schedulers import k8s_state
from rollcall.schedulers.k8s_manifest import LABEL, K8sJob, batch_job, check, service
from rollcall.schedulers.k8s_state import K8sState, Pod
from rollcall.schedulers.kubectl import ForbiddenError, Kubectl
from rollcall.units import in_seconds, plural

PULL_TIMEOUT_S = 120.0  # for an image that cannot be pulled: kubelet tries four times in this time
_TICK_S = 0.05
_POLL_S = 1.0  # between two requests while some pods start or end,
_SLOW_POLL_S = 10.0  # and while all run; the end of a log causes a request at once,
_SHORTEST_POLL_S = 0.2  # but never sooner than this
_EXPLAIN_AFTER_S = 30.0  # then pods that wait without a known problem are mentioned
_DRAIN_S = 15.0  # for the last lines of pods that have ended
_OURS = "rollcall: "
_OF_RANKS = re.compile(r" *\d[\d,-]* [│|] ")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\S+")

Tell = Callable[[str], None]


@dataclass(frozen=True)
class _RankLine:
    """A line of a rank, or of anything else in the pod."""

    text: str


@dataclass(frozen=True)
class _PodMessage:
    """A message of rollcall in a pod. Its text does not name the pod."""

    host: str
    text: str


@dataclass(frozen=True)
class _LogClosed:
    """A connection to a pod's log has ended, by an error or with the log."""

    pod: Pod
    why: RollcallError | None = None


_Message = _RankLine | _PodMessage | _LogClosed | K8sState | RollcallError


@dataclass
class _LogPosition:
    """How far a pod's log has been read."""

    last_time: str = ""
    open: bool = False
    final: bool = False  # the pod had ended before this connection began: it reads everything


def run(job: K8sJob, tell: Tell, pull_timeout_s: float = PULL_TIMEOUT_S) -> int:
    """Run the job on the cluster that kubectl knows; the exit code is that of the first pod to fail."""
    check(job)
    if interrupts:
        return 128 + interrupts.pop(0)
    with Kubectl(job.namespace) as kubectl:
        _submit(job, kubectl)
        tell(f"Job {job.name} is submitted: {plural(job.nodes, 'pod')} with {job.ranks}")
        return _K8sFollower(job, kubectl, tell, pull_timeout_s).follow()


def _submit(job: K8sJob, kubectl: Kubectl) -> None:
    """First the Job, then the Service, so that the Job can own it: Kubernetes removes them together."""
    uid = kubectl.create(batch_job(job))
    try:
        kubectl.create(service(job, owner_uid=uid))
    except RollcallError:
        with contextlib.suppress(RollcallError):
            kubectl.delete(f"job/{job.name}")
        raise


class _K8sFollower:
    """Follows a submitted job. Threads read the logs and poll the pods, and send what they find through one queue."""

    def __init__(self, job: K8sJob, kubectl: Kubectl, tell: Tell, pull_timeout_s: float) -> None:
        self._job, self._kubectl, self._tell, self._pull_timeout_s = job, kubectl, tell, pull_timeout_s
        self._messages: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        self._poll_now = threading.Event()
        self._poll_every_s, self._pause_s = _POLL_S, _SHORTEST_POLL_S
        self._logs: dict[str, _LogPosition] = {}
        self._pods: dict[str, Pod] = {}  # as last seen: when one fails, the Job deletes the others
        self._said_once: set[tuple[str, str]] = set()
        self._problem_since: dict[tuple[str, str], float] = {}
        self._begun = time.monotonic()
        self._newest: K8sState | None = None
        self._end: K8sState | None = None

    def follow(self) -> int:
        threading.Thread(target=self._poll_pods, name="pods", daemon=True).start()
        try:
            while self._end is None:
                if interrupts:
                    return self._stop(interrupts.pop(0))
                self._step()
                if (lost := self._reason_to_give_up()) is not None:
                    return self._give_up(lost)
            self._drain(_DRAIN_S)
        except BrokenPipeError:  # `rollcall run … | head` has closed the pipe
            discard_broken_output()
            return self._stop(signal.SIGPIPE)
        return self._finish(self._end)

    # ---- messages of the threads

    def _step(self) -> None:
        try:
            message = self._messages.get(timeout=_TICK_S)
        except queue.Empty:
            sys.stdout.flush()
            return
        match message:
            case _RankLine(text):
                sys.stdout.write(f"{text}\n")
            case _PodMessage(host, text):
                sys.stdout.flush()
                self._tell(f"{host}: {text}")
            case _LogClosed(pod, why):
                self._logs[pod.name].open = False
                self._on_log_closed(pod, why)
            case K8sState():
                self._on_state(message)
            case ForbiddenError() if self._newest is None:
                self._delete()
                raise message
            case RollcallError():  # an expired login must not end a training of many days
                self._tell_once("cluster", "silent", f"{message}; the run may continue there; rollcall keeps asking")

    def _on_state(self, state: K8sState) -> None:
        self._said_once.discard(("cluster", "silent"))
        self._newest = state
        if not state.outcome:
            self._tell_of_lost(state.pods)
        self._pods.update({pod.name: pod for pod in state.pods})
        for pod in state.pods:
            self._continue_reading(pod)
        self._explain_waiting(state.pods)
        running = sum(pod.running for pod in state.pods)
        self._poll_every_s = _SLOW_POLL_S if running == self._job.nodes else _POLL_S
        if state.outcome and self._end is None:
            self._end = state

    def _tell_of_lost(self, pods: tuple[Pod, ...]) -> None:
        """Report pods that are gone while the Job continues: Kubernetes makes others."""
        now = {pod.name: pod for pod in pods}
        for name, before in self._pods.items():
            pod = now.get(name)
            if pod is None or pod.failed:
                code = before.exit_code if pod is None else pod.exit_code
                end = "was deleted" if code is None else how_it_ended(code)
                why = (pod or before).end_message or end
                self._tell_once(name, "lost", f"{before.host}: {why}; Kubernetes starts it again")

    def _on_log_closed(self, pod: Pod, why: RollcallError | None) -> None:
        self._poll_now.set()
        if why is not None:
            self._pause_s = _POLL_S  # otherwise a log that cannot be read would be requested without a pause
        if isinstance(why, ForbiddenError):  # other errors end with the pod, or are tried again
            self._tell_once("cluster", "logs", f"{pod.host}: its output cannot be shown: {why}")

    def _explain_waiting(self, pods: tuple[Pod, ...]) -> None:
        now = time.monotonic()
        problems = {(pod.host, pod.problem.kind): pod.problem for pod in pods if pod.problem}
        self._problem_since = {key: self._problem_since.get(key, now) for key in problems}
        for (host, kind), problem in problems.items():
            self._tell_once(host, kind, f"{host}: {problem.sentence}")
        if now - self._begun < _EXPLAIN_AFTER_S:
            return
        if len(pods) < self._job.nodes:
            missing = f"Kubernetes has made {len(pods)} of {self._job.nodes} pods so far"
            self._tell_once("cluster", "pods", f"{missing}: `kubectl describe job {self._job.name}` says why")
        for pod in pods:
            if not pod.started and pod.problem is None and pod.exit_code is None:
                self._tell_once(pod.host, "slow", f"{pod.host}: has a node, and is still being prepared there")

    def _tell_once(self, about: str, kind: str, sentence: str) -> None:
        if (about, kind) not in self._said_once:
            self._said_once.add((about, kind))
            self._tell(sentence)

    # ---- threads

    def _poll_pods(self) -> None:
        while True:
            try:
                selector = f"{LABEL}={self._job.name}"
                self._messages.put(k8s_state.read(self._job, self._kubectl.get("jobs,pods", selector)))
            except RollcallError as error:
                if self._kubectl.closed:
                    return
                self._messages.put(error)
            time.sleep(self._pause_s)
            self._poll_now.wait(self._poll_every_s)
            self._poll_now.clear()

    def _continue_reading(self, pod: Pod) -> None:
        """Read a pod's log, unless it is being read or has been: in runs of many hours connections break."""
        log = self._logs.setdefault(pod.name, _LogPosition())
        if pod.started and not log.open and not log.final:
            log.open, log.final = True, pod.exit_code is not None
            threading.Thread(target=self._read, args=(pod, log), name=pod.host, daemon=True).start()

    def _read(self, pod: Pod, log: _LogPosition) -> None:
        try:
            for message in _messages_of(pod.host, _new_lines(log, self._kubectl.logs(pod.name, log.last_time))):
                self._messages.put(message)
        except RollcallError as error:
            self._messages.put(_LogClosed(pod, error))
        else:
            self._messages.put(_LogClosed(pod))

    # ---- the end

    def _drain(self, limit_s: float) -> None:
        """Show the rest of the logs."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline and not interrupts and not (self._messages.empty() and self._all_read()):
            self._step()
        sys.stdout.flush()

    def _all_read(self) -> bool:
        pods = self._newest.pods if self._newest else ()
        started = [self._logs[pod.name] for pod in pods if pod.started]
        return all(log.final for log in started) and not any(log.open for log in self._logs.values())

    def _finish(self, end: K8sState) -> int:
        if end.outcome == "complete":
            self._tell(f"Job {self._job.name} is complete; {self._kept()}")
            return 0
        failed = k8s_state.first_failure(list(self._pods.values()))
        if failed is not None and failed.exit_code is not None:
            self._tell(f"{failed.host}: {failed.end_message or how_it_ended(failed.exit_code)}")
        if end.outcome == "gone":
            self._tell(f"Job {self._job.name} was deleted, and its pods with it")
        else:
            why = f" ({end.reason})" if failed is None and end.reason else ""
            self._tell(f"Job {self._job.name} failed{why}; {self._kept()}")
        return 1 if failed is None or failed.exit_code is None else failed.exit_code

    def _kept(self) -> str:
        return (
            f"it is kept with its logs for {in_seconds(self._job.ttl_s)}"
            f" (`kubectl delete job {self._job.name}{self._in_namespace()}` removes it now)"
        )

    def _reason_to_give_up(self) -> str | None:
        """The problem because of which the run cannot start, if there is one."""
        for pod in self._pods.values():
            problem = pod.problem
            if problem is None or problem.may_pass:
                continue
            since = self._problem_since.get((pod.host, problem.kind))
            if since is not None and (problem.is_final or time.monotonic() - since >= self._pull_timeout_s):
                return f"{pod.host}: {problem.sentence}; {problem.advice}"
        return None

    def _give_up(self, why: str) -> int:
        self._tell(f"giving up: {why}")
        if self._delete():
            self._tell(f"Job and Service {self._job.name} are deleted")
        return 1

    def _stop(self, number: int) -> int:
        if self._delete():
            self._tell(
                f"interrupted: Job and Service {self._job.name} are deleted, and the pods are asked to end"
                " (Ctrl-C again: do not wait for their output)"
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


def _new_lines(log: _LogPosition, lines: Iterable[str]) -> Iterator[str]:
    """Lines without their times, and without lines read before: Kubernetes resumes a log at a whole second."""
    read_before = log.last_time
    for line in lines:
        when, _, text = line.partition(" ")
        if not _TIME.fullmatch(when):  # a message of kubelet, when it has no log
            yield line
        elif _sortable(when) > _sortable(read_before):
            log.last_time = when
            yield text


def _sortable(when: str) -> str:
    return when.rstrip("Z")  # "Z" would sort after the digits of a longer fraction


def _messages_of(host: str, lines: Iterable[str]) -> Iterator[_RankLine | _PodMessage]:
    """Separates rollcall's own lines from all others; `its traceback:` stays together with the traceback."""
    held: list[str] = []
    for line in lines:
        if held and line.startswith("  ") and not _OF_RANKS.match(line):
            held.append(line)
            continue
        if held:
            yield _PodMessage(host, "\n".join(held))
            held = []
        if not line.startswith(_OURS):
            yield _RankLine(line)
        elif line.endswith(":"):
            held = [line.removeprefix(_OURS)]
        else:
            yield _PodMessage(host, line.removeprefix(_OURS))
    if held:
        yield _PodMessage(host, "\n".join(held))
