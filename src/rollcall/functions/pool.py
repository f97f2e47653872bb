"""Functions on ranks, for `rollcall.spawn` and the pytest plugin.

A warm server in a process of its own (callee.py) has imported torch. A rank is a fork of it that gets a
pickled function in a memory file, and leaves its pickled answer in another.
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
from rollcall.coordinator.failure import is_echo
from rollcall.errors import RankError, UsageError
from rollcall.functions.worker import STACKS, content_of
from rollcall.ports import listen
from rollcall.protocol.exit_codes import how_it_ended
from rollcall.protocol.plan import LOOPBACK, MOST_RANKS_PER_HOST
from rollcall.protocol.timing import SETTLE_S
from rollcall.worker.fork_server import Exit, ForkServer
from rollcall.worker.traceback_filter import users_stack

STACKS_S = 1.0
LOOK_S = 0.05


@dataclass(frozen=True)
class Answer:
    """How one rank's call ended."""

    rank: int
    exit_code: int | None  # None: it was still running, and we ended it
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


class CallServer:
    """A warm server, and calls on ranks forked from it."""

    def __init__(self, preload: Sequence[str] = (), env: dict[str, str] | None = None) -> None:
        """`preload` names modules to import, or with `module:function` also to call, in the server."""
        self._preload = ["torch", "torch.distributed", *preload]
        self._env = env or {}
        self._server: ForkServer | None = None
        self._owner = os.getpid()

    def start(self) -> ForkServer:
        """The server, started if need be: it dies with us, and is not shared with a fork of us."""
        if self._server is None or self._owner != os.getpid():
            words = [sys.executable, "-m", "rollcall.functions.worker", ",".join(self._preload)]
            path = os.pathsep.join(p for p in sys.path if p)
            env = {**os.environ, **impatient_env(), "PYTHONPATH": path, **self._env}
            env.setdefault("OMP_NUM_THREADS", "1")
            self._server, self._owner = ForkServer.launch(words, env), os.getpid()
        return self._server

    def call(
        self,
        function: Callable[..., Any],
        ranks: int,
        *,
        timeout_s: float | None = None,
        env: dict[str, str] | None = None,
        capture: bool = False,
        is_stuck: Callable[[], bool] | None = None,
    ) -> list[Answer]:
        """Call `function(rank)` on every rank of a new world; after the first failure the others are ended.

        So they are after `timeout_s`, or as soon as `is_stuck` says that nothing will come of it any more.
        """
        if not 1 <= ranks <= MOST_RANKS_PER_HOST:
            raise UsageError(f"{ranks} ranks were asked for, but 1 to {MOST_RANKS_PER_HOST} can start on one host")
        try:
            server = self.start()
            with contextlib.ExitStack() as files:
                answers = _Calls(server, function, ranks, env or {}, capture, files).answers(timeout_s, is_stuck)
            server.prepare(ranks + 1)  # the next call is likely to want as many, and a store
            return answers
        except EOFError:
            self.close()
            raise RankError("the warm server was killed, and its ranks with it: call again") from None

    def close(self) -> None:
        if self._server is not None and self._owner == os.getpid():
            self._server.close()
        self._server = None


class _Calls:
    """The ranks of one call."""

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
        os.write(payload, cloudpickle.dumps(function))
        listener = files.enter_context(listen(LOOPBACK, 0))
        port = listener.getsockname()[1]
        null = os.open(os.devnull, os.O_RDONLY)
        files.callback(os.close, null)
        self._results = [self._memory(f"result-{r}") for r in range(ranks)]
        self._stacks = [self._memory(f"stacks-{r}") for r in range(ranks)]
        self._outputs = [self._memory(f"output-{r}") if capture else -1 for r in range(ranks)]
        self._rank_of: dict[int, int] = {}
        self._ends: dict[int, Exit] = {}
        self._store = server.start({"port": port}, (null, 2, 2), (listener.fileno(),))
        sys.stdout.flush()
        sys.stderr.flush()
        for rank in range(ranks):
            request = {
                "env": {**os.environ, **_env(rank, ranks, port), **env},
                "cwd": os.getcwd(),
                "path": sys.path,
                "rank": rank,
            }
            out, err = (self._outputs[rank],) * 2 if capture else (1, 2)
            extra = (payload, self._results[rank], self._stacks[rank])
            self._rank_of[server.start(request, (null, out, err), extra)] = rank

    def answers(self, timeout_s: float | None, is_stuck: Callable[[], bool] | None = None) -> list[Answer]:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            timed_out = not self._wait(deadline, until_failure=True, is_stuck=is_stuck)
            if timed_out:
                self._ask_for_stacks()
            elif self._has_failed():
                self._wait(time.monotonic() + SETTLE_S, until_failure=False)
        finally:
            self._end()
        return [self._answer(rank) for rank in range(len(self._results))]

    def _wait(self, deadline: float | None, until_failure: bool, is_stuck: Callable[[], bool] | None = None) -> bool:
        """Until all ranks, or the first that fails, have ended. False if the deadline came first, or they are stuck."""
        while self._rank_of and not (until_failure and self._has_failed()):
            left = 3600.0 if deadline is None else deadline - time.monotonic()
            if left <= 0 or (is_stuck is not None and is_stuck()):
                return False
            self._note(left if is_stuck is None else min(left, LOOK_S))
        return True

    def _note(self, timeout_s: float) -> None:
        for end in self._server.ends(timeout_s):
            rank = self._rank_of.pop(end.pid, None)
            if rank is not None:
                self._ends[rank] = end

    def _has_failed(self) -> bool:
        return any(end.code for end in self._ends.values())

    def _ask_for_stacks(self) -> None:
        for pid in self._rank_of:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, STACKS)
        deadline = time.monotonic() + STACKS_S
        while time.monotonic() < deadline and not all(
            os.fstat(self._stacks[r]).st_size for r in self._rank_of.values()
        ):
            time.sleep(0.01)
        time.sleep(0.05)  # a stack is written in several pieces

    def _end(self) -> None:
        running = dict(self._rank_of)
        for pid in (*running, self._store):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        while self._rank_of:
            self._note(1.0)
        for rank in running.values():
            self._ends.pop(rank, None)  # that end was ours

    def _answer(self, rank: int) -> Answer:
        end = self._ends.get(rank)
        bare = Answer(
            rank,
            exit_code=end.code if end else None,
            failed_ns=end.ended_ns if end else 0,
            output=self._text(self._outputs[rank]),
            stacks=users_stack(self._text(self._stacks[rank])),
        )
        raw = content_of(self._results[rank])
        if not raw and not bare.exit_code:
            return bare
        if not raw:  # gone without a word: an exit or a signal
            return replace(bare, error=RankError(f"rank {rank} {how_it_ended(bare.exit_code or 0)}"))
        try:
            return replace(bare, **pickle.loads(raw))
        except Exception as error:
            return replace(
                bare, error=RankError(f"what rank {rank} returned or raised cannot be unpickled here: {error}")
            )

    def _memory(self, name: str) -> int:
        fd = os.memfd_create(f"rollcall-{name}")
        self._files.callback(os.close, fd)
        return fd

    def _text(self, fd: int) -> str:
        return content_of(fd).decode(errors="replace") if fd >= 0 else ""


def _env(rank: int, ranks: int, port: int) -> dict[str, str]:
    """The variables that torchrun would set; rank 0 serves the store that we listen for."""
    env = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "GROUP_RANK": 0,
        "WORLD_SIZE": ranks,
        "LOCAL_WORLD_SIZE": ranks,
        "GROUP_WORLD_SIZE": 1,
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": port,
        "TORCHELASTIC_RUN_ID": f"call-{port}",
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
        "TORCHELASTIC_USE_AGENT_STORE": True,
    }
    return {name: str(value) for name, value in env.items()}
