"""Calls functions on ranks, for `rollcall.spawn`, the pytest plugin and the lab.

A fork server in a process of its own (worker.py) has imported torch. A rank is a fork of it that reads a
pickled function from a memory file, and writes its pickled result into another.
"""

import contextlib
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import cloudpickle

from rollcall.compat.torch_dns import impatient_env
from rollcall.errors import RankError, UsageError
from rollcall.functions import warm
from rollcall.functions.worker import MODULES, STACKS_SIGNAL, read_all, write_all
from rollcall.linux import process_group
from rollcall.ports import listen
from rollcall.protocol.exit_codes import how_it_ended
from rollcall.protocol.first_failure import is_echo
from rollcall.protocol.plan import LOOPBACK, MOST_RANKS_PER_HOST
from rollcall.protocol.timing import SETTLE_S
from rollcall.protocol.torchrun_env import rank_env
from rollcall.worker.fork_server import Exit, ForkServer
from rollcall.worker.traceback_filter import users_stack

_STACKS_S = 1.0
_CHECK_STUCK_S = 0.05


@dataclass(frozen=True)
class FunctionResult:
    """How the call ended on one rank."""

    rank: int
    exit_code: int | None  # None: the rank was still running, and was ended
    value: Any = None
    error: BaseException | None = None
    traceback: str = ""
    failed_ns: int = 0
    output: str = ""
    stacks: str = ""

    @property
    def is_echo(self) -> bool:
        return is_echo(str(self.error or ""))

    @property
    def failed(self) -> bool:
        return self.error is not None or self.exit_code not in (0, None)


class RankPool:
    """Calls functions on ranks that are forked from one server. The server starts with the first call."""

    def __init__(self, preload: Sequence[str] = (), env: dict[str, str] | None = None) -> None:
        """`preload` names modules to import in the server, or with `module:function` also to call."""
        self._preload = list(preload)
        self._env = env or {}
        self._server: ForkServer | None = None
        self._owner = os.getpid()

    def start(self) -> ForkServer:
        """The server, started if it does not run. It ends with this process; a fork of this process gets its own."""
        if self._server is None or self._owner != os.getpid():
            env = {**os.environ, **self._env}
            env.setdefault("OMP_NUM_THREADS", "1")
            self._server, self._owner = warm.take(env, self._preload) or self._launch(env), os.getpid()
        return self._server

    def _launch(self, env: dict[str, str]) -> ForkServer:
        command = [sys.executable, "-m", "rollcall.functions", ",".join((*MODULES, *self._preload))]
        path = os.pathsep.join(p for p in sys.path if p)
        return ForkServer.launch(command, {**env, **impatient_env(), "PYTHONPATH": path})

    def call(
        self,
        function: Callable[..., Any],
        ranks: int,
        *,
        timeout_s: float | None = None,
        env: dict[str, str] | None = None,
        capture: bool = False,
        is_stuck: Callable[[], bool] | None = None,
    ) -> list[FunctionResult]:
        """Call `function(rank)` on every rank of a new world.

        All ranks are ended after the first failure, after `timeout_s`, or as soon as `is_stuck` returns True.
        """
        if not 1 <= ranks <= MOST_RANKS_PER_HOST:
            raise UsageError(f"{ranks} ranks were asked for, but 1 to {MOST_RANKS_PER_HOST} can start on one host")
        try:
            server = self.start()
            with contextlib.ExitStack() as files:
                results = _FunctionCall(server, function, ranks, env or {}, capture, files).wait(timeout_s, is_stuck)
            server.prepare(ranks + 1)  # the next call probably needs as many ranks, and a store
            return results
        except EOFError:
            self.close()
            raise RankError("the fork server was killed, and its ranks with it: call again") from None

    def close(self) -> None:
        if self._server is not None and self._owner == os.getpid():
            self._server.close()
        self._server = None


class _FunctionCall:
    """One call: its ranks, and a process with their store."""

    def __init__(
        self,
        server: ForkServer,
        function: Callable[..., Any],
        ranks: int,
        env: dict[str, str],
        capture: bool,
        files: contextlib.ExitStack,
    ) -> None:
        self._server = server
        self._files = files
        payload = self._memory("payload")
        write_all(payload, cloudpickle.dumps(function))
        listener = files.enter_context(listen(LOOPBACK, 0))
        port = listener.getsockname()[1]
        null = os.open(os.devnull, os.O_RDONLY)
        files.callback(os.close, null)
        self._results = [self._memory(f"result-{r}") for r in range(ranks)]
        self._stacks = [self._memory(f"stacks-{r}") for r in range(ranks)]
        self._outputs = [self._memory(f"output-{r}") if capture else -1 for r in range(ranks)]
        self._running: dict[int, int] = {}  # the ranks that run, by pid
        self._exits: dict[int, Exit] = {}  # by rank
        self._unreported: set[int] = set()  # ranks that had reported nothing when they were ended
        self._store = server.start({"port": port}, (null, 2, 2), (listener.fileno(),))
        sys.stdout.flush()
        sys.stderr.flush()
        for rank in range(ranks):
            request = {
                "env": {**os.environ, **_rank_env(rank, ranks, port), **env},
                "cwd": os.getcwd(),
                "path": sys.path,
                "rank": rank,
            }
            out, err = (self._outputs[rank],) * 2 if capture else (1, 2)
            extra = (payload, self._results[rank], self._stacks[rank])
            self._running[server.start(request, (null, out, err), extra)] = rank

    def wait(self, timeout_s: float | None, is_stuck: Callable[[], bool] | None = None) -> list[FunctionResult]:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            if not self._wait(deadline, until_failure=True, is_stuck=is_stuck):
                self._ask_for_stacks()
            elif self._has_failed():
                self._wait(time.monotonic() + SETTLE_S, until_failure=False)
        finally:
            self._end()
        return [self._result(rank) for rank in range(len(self._results))]

    def _wait(self, deadline: float | None, until_failure: bool, is_stuck: Callable[[], bool] | None = None) -> bool:
        """Waits until all ranks have ended, or one has failed. False if the deadline came first, or they are stuck."""
        while self._running and not (until_failure and self._has_failed()):
            left_s = 3600.0 if deadline is None else deadline - time.monotonic()
            if left_s <= 0 or (is_stuck is not None and is_stuck()):
                return False
            self._collect_exits(left_s if is_stuck is None else min(left_s, _CHECK_STUCK_S))
        return True

    def _collect_exits(self, timeout_s: float) -> None:
        for end in self._server.ends(timeout_s):
            rank = self._running.pop(end.pid, None)
            if rank is not None:
                self._exits[rank] = end

    def _has_failed(self) -> bool:
        return any(end.code for end in self._exits.values())

    def _ask_for_stacks(self) -> None:
        for pid in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, STACKS_SIGNAL)
        deadline = time.monotonic() + _STACKS_S
        waiting = [self._stacks[rank] for rank in self._running.values()]
        while time.monotonic() < deadline and not all(os.fstat(fd).st_size for fd in waiting):
            time.sleep(0.01)
        time.sleep(0.05)  # a stack is written in several pieces

    def _end(self) -> None:
        """End the ranks that still run; they have no exit code of their own. If one of them reports an error only now,
        about a rank that was ended before it, this is not the result of its call."""
        still_running = dict(self._running)
        self._unreported = {rank for rank in still_running.values() if not os.fstat(self._results[rank]).st_size}
        for pid in (*still_running, self._store):
            process_group.send(pid, signal.SIGKILL)
        while self._running:
            self._collect_exits(1.0)
        for rank in still_running.values():
            self._exits.pop(rank, None)

    def _result(self, rank: int) -> FunctionResult:
        end = self._exits.get(rank)
        bare = FunctionResult(
            rank,
            exit_code=end.code if end else None,
            failed_ns=end.ended_ns if end else 0,
            output=_text(self._outputs[rank]),
            stacks=users_stack(_text(self._stacks[rank])),
        )
        if rank in self._unreported:
            return bare
        pickled = read_all(self._results[rank])
        if pickled:
            return _unpickled(bare, pickled)
        if bare.exit_code:  # it called os._exit, or a signal killed it
            return replace(bare, error=RankError(f"rank {rank} {how_it_ended(bare.exit_code)}"))
        return bare

    def _memory(self, name: str) -> int:
        fd = os.memfd_create(f"rollcall-{name}")
        self._files.callback(os.close, fd)
        return fd


def _unpickled(bare: FunctionResult, pickled: bytes) -> FunctionResult:
    try:
        return replace(bare, **pickle.loads(pickled))
    except Exception as error:
        sentence = f"what rank {bare.rank} returned or raised cannot be unpickled here: {error}"
        return replace(bare, error=RankError(sentence))


def _text(fd: int) -> str:
    return read_all(fd).decode(errors="replace") if fd >= 0 else ""


def _rank_env(rank: int, ranks: int, port: int) -> dict[str, str]:
    return rank_env(
        rank=rank,
        world_size=ranks,
        local_rank=rank,
        local_world_size=ranks,
        node_rank=0,
        nnodes=1,
        master_addr=LOOPBACK,
        master_port=port,
        run_id=f"call-{port}",
    )
