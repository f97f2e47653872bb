"""pdb in a rank. Its terminal is that of the launcher, or that of `rollcall attach`.

`breakpoint()` stops the rank that calls it. `rollcall attach` stops a rank at the next line of Python that its main
thread runs. A rank that stays in C++, as in an op that hangs, cannot be stopped: the debugger then inspects it from
another thread.
"""

import contextlib
import io
import json
import os
import pdb
import socket
import sys
import threading
from types import FrameType, TracebackType
from typing import Any

from rollcall.protocol.messages import DEBUGGER
from rollcall.protocol.plan import LOOPBACK
from rollcall.record.on_request.main_thread import PendingCall
from rollcall.record.sites import is_users_file
from rollcall.worker import agent_connection

_STOP_S = 2.0  # for the main thread to reach a line of Python
_SKIPPED = ["rollcall.record.*"]  # modules in which nobody wants to stop
_ONLY_LOOK = """\
rank {rank} is in C++, and comes to no line of Python: look at it with where, up, down, p; it cannot be stepped.
"""


class _Terminal(io.TextIOBase):
    """pdb's input and output: lines of JSON on the link."""

    def __init__(self, link: socket.socket, rank: int) -> None:
        self._reader, self._writer = link.makefile("r"), link.makefile("wb", buffering=0)
        self._rank = rank

    def tell(self, **message: Any) -> None:  # type: ignore[override]
        with contextlib.suppress(OSError):  # the launcher is gone, and this rank ends soon
            self._writer.write(json.dumps(message).encode() + b"\n")

    def write(self, text: str) -> int:
        self.tell(kind="text", text=text)
        return len(text)

    def readline(self, _size: int = -1) -> str:  # type: ignore[override]
        """The next line; empty if there will be none."""
        self.tell(kind="ask", prompt=f"(rank {self._rank}) ")
        line = self._reader.readline()
        return str(json.loads(line)["line"]) if line else ""

    def flush(self) -> None:
        """Everything is sent at once."""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"


class RankDebugger(pdb.Pdb):
    def __init__(self, terminal: _Terminal) -> None:
        options: dict[str, Any] = {"stdin": terminal, "stdout": terminal, "nosigint": True, "skip": _SKIPPED}
        super().__init__(**options)
        self.use_rawinput = False
        self.prompt = ""  # the terminal shows its own
        self.terminal = terminal
        self.begins_in_users_frame = False  # wherever it stops next
        self.is_attached = False  # by `rollcall attach`, which may leave while the program continues

    def interaction(self, frame: FrameType | None, traceback: TracebackType | None) -> None:
        at = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}" if frame else ""
        self.terminal.tell(kind="stopped", at=at, is_attached=self.is_attached)
        super().interaction(frame, traceback)
        if self.stoplineno == -1:  # it does not stop at the next line again
            self.go_on()

    def get_stack(self, frame: FrameType | None, traceback: TracebackType | None) -> Any:
        """Leaves out the frames of rollcall below the program, and around its ops."""
        stack, _ = super().get_stack(frame, traceback)
        begin = max((at for at, (each, _) in enumerate(stack) if _is_of(each, "rollcall.worker.main")), default=-1)
        kept = [each for each in stack[begin + 1 :] if not _is_of(each[0], "rollcall.record")] or stack
        own = [at for at, (each, _) in enumerate(kept) if is_users_file(each.f_code.co_filename)]
        is_asked, self.begins_in_users_frame = self.begins_in_users_frame, False
        return kept, own[-1] if is_asked and own else len(kept) - 1

    def go_on(self) -> None:
        """The program runs. `rollcall attach` stays connected if there are breakpoints."""
        self.is_attached = self.is_attached and bool(self.breaks)
        self.terminal.tell(kind="running", stays=self.is_attached)

    def do_quit(self, arg: str) -> bool | None:
        """Ends the program after its own breakpoint(), as in Python. After `rollcall attach`, the program continues."""
        if not self.is_attached:
            return super().do_quit(arg)
        self.clear_all_breaks()
        self.set_continue()
        self.is_attached = False
        return True

    do_q = do_exit = do_quit

    def do_EOF(self, arg: str) -> bool | None:  # noqa: N802  (pdb's name)
        return self.do_quit(arg)


def _is_of(frame: FrameType, package: str) -> bool:
    return f"{frame.f_globals.get('__name__', '')}.".startswith(f"{package}.")


_debugger: RankDebugger | None = None
_opening = threading.Lock()


def _opened() -> RankDebugger:
    """The debugger of this process. There is only one, so it keeps its breakpoints."""
    global _debugger
    with _opening:
        if _debugger is None:
            rank = agent_connection.rank()
            _debugger = RankDebugger(_Terminal(agent_connection.connect(DEBUGGER), rank))
        return _debugger


def stop_in(frame: FrameType | None) -> None:
    """Stop at the next line of this frame."""
    debugger = _opened()
    debugger.is_attached = False
    debugger.set_trace(frame)


def attach(_request: dict[str, Any]) -> dict[str, Any]:
    """Asked from outside, in a thread of its own: stop the main thread at its next line."""
    debugger = _opened()
    if debugger.is_attached:
        return {"error": "has a debugger already: quit it first"}
    debugger.is_attached = debugger.begins_in_users_frame = True
    if not PendingCall(debugger.set_trace).has_begun(_STOP_S):
        threading.Thread(target=_look_at_main, args=(debugger,), name="debugger", daemon=True).start()
    return {}


def _look_at_main(debugger: RankDebugger) -> None:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    debugger.terminal.write(_ONLY_LOOK.format(rank=agent_connection.rank()))
    debugger.reset()
    debugger.interaction(frame, None)
    debugger.clear_all_breaks()  # the main thread is not traced, so it would not stop at them
    debugger.go_on()


def listen(_request: dict[str, Any]) -> dict[str, Any]:
    """A server of debugpy on this host's loopback, for VS Code; its port."""
    global _port
    try:
        import debugpy  # here: it need not be installed
    except ImportError:
        return {"error": "has no debugpy: pip install debugpy in the environment of the ranks"}
    with _opening:
        if not _port:
            _port = int(debugpy.listen((LOOPBACK, 0))[1])
        return {"port": _port, "host": socket.gethostname()}


_port = 0
