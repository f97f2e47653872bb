"""Runs the user's own kubectl, with its clusters, logins and contexts. Its errors become sentences."""

import contextlib
import json
import re
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

from rollcall.errors import RollcallError, UsageError

_REQUEST_S = 30


class ForbiddenError(UsageError):
    """The user is not logged in, or lacks the rights."""


class Kubectl:
    """kubectl in one namespace (None: that of its context). Leaving the `with` block ends its running processes."""

    def __init__(self, namespace: str | None) -> None:
        self._namespace = namespace
        self._lock = threading.Lock()
        self._closed = False
        self._running: set[subprocess.Popen[bytes]] = set()

    def __enter__(self) -> "Kubectl":
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._closed = True
            for process in self._running:
                process.kill()

    @property
    def closed(self) -> bool:
        return self._closed

    def create(self, text: str) -> str:
        """Create what the YAML describes; returns its uid."""
        # Validation would fetch a schema of some megabytes first, and this text is known to be valid.
        arguments = ["create", "--validate=false", "-f", "-", "-o", "jsonpath={.metadata.uid}"]
        return self._ask(arguments, text)

    def get(self, kinds: str, selector: str) -> dict[str, Any]:
        listing: dict[str, Any] = json.loads(self._ask(["get", kinds, "--selector", selector, "-o", "json"]))
        return listing

    def delete(self, *names: str) -> None:
        """Delete those of these (`job/x`) that exist, without waiting for their pods to end."""
        self._ask(["delete", *names, "--ignore-not-found", "--wait=false"])

    def logs(self, pod: str, since: str | None) -> Iterator[str]:
        """The lines of a pod's log (since a time) until the pod ends, each with its time."""
        arguments = ["logs", pod, "--follow", "--timestamps", *([f"--since-time={since}"] if since else [])]
        with self._started(arguments) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            for line in process.stdout:
                yield line.decode(errors="replace").rstrip("\r\n")
            err = process.stderr.read()
        if process.returncode != 0:
            raise self._refusal("logs", err.decode(errors="replace"))

    def _ask(self, arguments: list[str], text: str = "") -> str:
        with self._started([*arguments, f"--request-timeout={_REQUEST_S}s"]) as process:
            out, err = process.communicate(text.encode())
        if process.returncode != 0:
            raise self._refusal(arguments[0], err.decode(errors="replace"))
        return out.decode()

    @contextlib.contextmanager
    def _started(self, arguments: list[str]) -> Iterator["subprocess.Popen[bytes]"]:
        with self._lock:
            if self._closed:
                raise UsageError("the run is over")
            process = self._start(arguments)
            self._running.add(process)
        try:
            with process:
                yield process
        finally:
            with self._lock:
                self._running.discard(process)

    def _start(self, arguments: list[str]) -> "subprocess.Popen[bytes]":
        namespace = [] if self._namespace is None else ["--namespace", self._namespace]
        try:
            return subprocess.Popen(
                ["kubectl", *arguments, *namespace],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C in the terminal must reach rollcall alone
            )
        except OSError as error:
            raise UsageError(
                f"--kubernetes needs kubectl, which does not start ({error.strerror}): install it and put it on the"
                " PATH, or print the YAML with --dry-run and submit it on another machine"
            ) from error

    def _refusal(self, verb: str, err: str) -> RollcallError:
        said = _last_line(err)
        for pattern, kind, advice in _REFUSALS:
            if re.search(pattern, err, re.IGNORECASE):
                return kind(advice.format(said=said, namespace=self._namespace or "of kubectl's context"))
        return UsageError(f"kubectl {verb} failed ({said}): try `kubectl get jobs` by hand")


# The first pattern that matches what kubectl prints.
_REFUSALS: tuple[tuple[str, type[UsageError], str], ...] = (
    (
        r"localhost:8080|current-context is not set|no configuration has been provided|context .* does not exist"
        r"|invalid configuration|error loading config",
        UsageError,
        "kubectl knows of no cluster ({said}): choose one with `kubectl config use-context NAME`, or name its file in"
        " $KUBECONFIG",
    ),
    (
        r"unauthorized|must be logged in|provide credentials|getting credentials",
        ForbiddenError,
        "the cluster does not know who you are ({said}): log in again, and try `kubectl get jobs`",
    ),
    (
        r"namespaces? \S+ not found",
        UsageError,
        "there is no namespace {namespace} ({said}): choose another with --namespace, or make it with"
        " `kubectl create namespace`",
    ),
    (
        r"exceeded quota",
        UsageError,
        "the namespace {namespace} has no room left for it ({said}): ask for less, or end other runs first",
    ),
    (
        r"forbidden",
        ForbiddenError,
        "you may not do this in the namespace {namespace} ({said}): ask for the rights to create, get, list and"
        " delete jobs and services there and to read pods and their logs, or choose another with --namespace",
    ),
    (
        r"already ?exists",
        UsageError,
        "there is one of this name already ({said}): choose another with --name, or delete that one",
    ),
    (
        r"refused|no such host|timeout|timed out|unable to connect|no route|unreachable|connection reset|\bEOF\b"
        r"|service ?unavailable|too ?many ?requests|internal ?error|x509",
        UsageError,
        "the cluster does not answer ({said}): check the network, the VPN, and `kubectl cluster-info`",
    ),
)


def _last_line(err: str) -> str:
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    return lines[-1].removeprefix("error: ").removeprefix("Error from server ").rstrip(".") if lines else "no reason"
