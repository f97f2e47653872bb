"""One rank's side of `rollcall shell`: runs what is typed in its main thread, and answers.

A second thread reads what comes. On request it cancels the line. A rank that waits in C++ sees no KeyboardInterrupt
before its op returns, and so all ranks abort the process group, whereupon their ops fail; Python code that still runs
then is interrupted. At last the prompt has all ranks make a new group. Variables stay.
"""

import _thread
import ast
import builtins
import contextlib
import io
import json
import linecache
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from types import ModuleType
from typing import Any, BinaryIO

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from rollcall.shell import notebook_output
from rollcall.shell.options import WAITING
from rollcall.worker.traceback_filter import users_part

# For ops to fail once the group is aborted. A signal at the same time may come before the failure is recorded.
_SIGNAL_AFTER_S = 0.5
_END_S = 10.0
_FIGURES = "module://rollcall.shell.matplotlib_backend"
_MOST_COMPLETIONS = 200
_MOST_GROUPS = 1000  # that a program makes before a line is cancelled: torch numbers them


class Session:
    def __init__(
        self, link: socket.socket, rank: int, size: int, store: dist.Store, waiting_file: str, is_notebook: bool = False
    ) -> None:
        """`is_notebook`: the other side is a notebook, which shows pictures."""
        self._writer, self._reader = link.makefile("wb", buffering=0), link.makefile("rb")
        self._sending = threading.Lock()
        self._rank, self._size, self._store = rank, size, store
        self._requests: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._is_busy = False
        self._result = ""  # the value of the line
        self._is_notebook = is_notebook
        self._main = ModuleType("__main__")
        # As a line of a file: explain can show where this rank is.
        self._wait = compile(WAITING, waiting_file, "exec")

    def serve(self) -> None:
        """Serves until the prompt ends."""
        sys.stdout, sys.stderr = _PromptStream(self, 1, sys.stdout), _PromptStream(self, 2, sys.stderr)
        sys.modules["__main__"] = self._main
        sys.displayhook = self._show_result
        if self._is_notebook:
            self._use_notebook_backend()
        self._make_group(0)
        self._reset()
        _thread.start_new_thread(self._read, (self._reader,))
        self.send(kind="hello", rank=self._rank, world_size=self._size)
        while (request := self._next()) is not None:
            self._answer(request)
        with contextlib.suppress(Exception):  # the others may be gone
            dist.destroy_process_group()

    def send(self, **message: Any) -> None:
        with self._sending, contextlib.suppress(OSError):  # the prompt is gone: its end is about to be read
            self._writer.write(json.dumps(message).encode() + b"\n")

    def _next(self) -> dict[str, Any] | None:
        while True:
            with contextlib.suppress(KeyboardInterrupt):  # it came when the line was over
                scope: dict[str, Any] = {"next_line": self._requests.get}
                exec(self._wait, scope)
                return scope["line"]  # type: ignore[no-any-return]

    def _read(self, reader: BinaryIO) -> None:
        for line in reader:
            message = json.loads(line)
            if message["kind"] == "interrupt":
                self._interrupt()
            else:
                self._requests.put(message)
        self._requests.put(None)
        if self._is_busy:
            self._interrupt()
        time.sleep(_END_S)
        os._exit(1)  # the prompt is gone, and the line cannot be cancelled

    def _interrupt(self) -> None:
        if dist.is_initialized():
            with contextlib.suppress(Exception):  # a backend that cannot: the line stays where it is
                distributed_c10d._abort_process_group()
        until_s = time.monotonic() + _SIGNAL_AFTER_S
        while self._is_busy and time.monotonic() < until_s:
            time.sleep(0.01)
        if self._is_busy:
            os.kill(os.getpid(), signal.SIGINT)

    def _answer(self, request: dict[str, Any]) -> None:
        began_s = time.perf_counter()
        error = self._result = ""
        self._is_busy = True
        try:
            getattr(self, f"_do_{request['kind']}")(**request["arguments"])
        except BaseException as raised:
            error = _in_words(raised)
        self._is_busy = False
        seconds = time.perf_counter() - began_s
        self.send(kind="done", id=request["id"], result=self._result, error=error, seconds=seconds)

    # What the prompt can ask for.

    def _do_run(self, code: str, file: str) -> None:
        """The value of a last expression is shown, unless a semicolon ends it, as in IPython."""
        linecache.cache[file] = len(code), None, code.splitlines(keepends=True), file  # it may be on another host
        tree = ast.parse(code, file)
        is_shown = bool(tree.body) and isinstance(tree.body[-1], ast.Expr) and not code.rstrip().endswith(";")
        last = tree.body.pop() if is_shown else None
        exec(compile(tree, file, "exec"), self._main.__dict__)
        if last is not None:
            exec(compile(ast.Interactive([last]), file, "single"), self._main.__dict__)
        if self._is_notebook and "matplotlib.pyplot" in sys.modules:
            self._show_figures()

    def _show_result(self, value: object) -> None:
        """Replaces Python's own for the last expression of a line. The value goes with the answer, so that the
        prompt can show the values of all ranks in their order."""
        if value is None:
            return
        self._main.__dict__["_"] = value
        if self._is_notebook and len(notebook_output.bundle_of(value)) > 1:
            self._display(value)
        else:
            self._result = f"{value!r}\n"

    def _do_who(self) -> None:
        for name, value in sorted(self._main.__dict__.items()):
            if not name.startswith("_") and not isinstance(value, ModuleType) and name not in self._given:
                print(f"{name}: {type(value).__name__}{_shape(value)}")

    def _do_doc(self, name: str) -> None:
        try:
            value = eval(name, {**vars(torch), **vars(dist), **self._main.__dict__})
        except (NameError, AttributeError, SyntaxError):
            print(f"there is nothing called {name}" if name else "name something, as in %doc all_reduce")
            return
        print((getattr(value, "__doc__", None) or f"{name} has no documentation").strip())

    def _do_complete(self, text: str) -> None:
        """Names that begin so, one a line."""
        owner, dot, start = text.rpartition(".")
        names = dir(eval(owner, self._main.__dict__)) if dot else [*self._main.__dict__, *dir(builtins)]
        found = sorted(name for name in names if name.startswith(start) and (start or not name.startswith("_")))
        self.send(kind="completions", names=[owner + dot + name for name in found[:_MOST_COMPLETIONS]])

    def _do_reset(self) -> None:
        self._reset()

    def _do_regroup(self, number: int) -> None:
        with contextlib.suppress(Exception):  # it was aborted
            dist.destroy_process_group()
        self._make_group(number)

    def _reset(self) -> None:
        self._given = {"rank": self._rank, "world_size": self._size, "torch": torch, "dist": dist}
        self._given |= {"display": self._display} if self._is_notebook else {}
        self._main.__dict__.clear()
        self._main.__dict__.update(__name__="__main__", __builtins__=builtins, **self._given)

    # What a notebook shows.

    def _use_notebook_backend(self) -> None:
        os.environ["MPLBACKEND"] = _FIGURES  # for matplotlib; the one of the notebook is there now
        if "matplotlib" in sys.modules:
            sys.modules["matplotlib"].use(_FIGURES)

    def _display(self, *values: object) -> None:
        for value in values:
            bundle = notebook_output.bundle_of(value)
            if len(bundle) == 1:
                print(bundle[notebook_output.PLAIN])
            else:
                self.send(kind="display", bundle=bundle)
            if notebook_output.is_figure(value):  # it is shown, and not once more at the end of the cell
                sys.modules["matplotlib.pyplot"].close(value)

    def _show_figures(self) -> None:
        from rollcall.shell import matplotlib_backend  # here: it imports matplotlib, which is there now

        matplotlib_backend.send = self._display
        matplotlib_backend.show()

    def _make_group(self, number: int) -> None:
        """Each has a name of its own, which tells it from the last one in the recording, and a part of the store."""
        distributed_c10d._world.group_count = number * _MOST_GROUPS
        store = dist.PrefixStore(f"shell-{number}", self._store)
        dist.init_process_group(store=store, rank=self._rank, world_size=self._size)


def _in_words(error: BaseException) -> str:
    """The traceback of the line; of a line that is not Python there is none."""
    if isinstance(error, SyntaxError):
        return "".join(traceback.format_exception_only(error))
    error.__traceback__ = users_part(error.__traceback__)
    return "".join(traceback.format_exception(error))


def _shape(value: object) -> str:
    return f" {list(value.shape)} {value.dtype}" if isinstance(value, torch.Tensor) else ""


class _PromptStream(io.TextIOBase):
    """What the rank prints goes to the prompt, in order with its answers. C code writes to the log of the run."""

    def __init__(self, session: Session, number: int, before: Any) -> None:
        self._session, self._number, self._before = session, number, before

    def write(self, text: str) -> int:
        self._session.send(kind="output", stream=self._number, text=text)
        return len(text)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return int(self._before.fileno())

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"
