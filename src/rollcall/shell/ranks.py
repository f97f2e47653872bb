"""The ranks of `rollcall shell` from the prompt's side: a run of its own, and one connection to each rank."""

import contextlib
import json
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from rollcall.coordinator.console import Console
from rollcall.errors import RankError, UsageError
from rollcall.protocol.rank_ranges import list_of, ranks_in_words, read_ranks
from rollcall.shell.options import MOST_RANKS, WAITING, ShellOptions, check_size

_LOOK_S = 0.05
_FOLD_S = 0.5  # equal lines of ranks within this time are shown as one
_BACK_S = 10.0  # for ranks to come back from a line that is cancelled
_END_S = 30.0


@dataclass
class RankConnection:
    """One connection, and the beginning of a line that is not complete."""

    number: int
    link: socket.socket
    partial: bytes = b""
    waits_for: int = 0  # the request that it has not answered
    result: str = ""
    errors: str = ""
    seconds: float = 0.0
    completions: list[str] = field(default_factory=list)
    displays: list[dict[str, str]] = field(default_factory=list)  # pictures and the like, by format


class EndedError(RankError):
    """The ranks are gone; their launcher has printed why."""


class Ranks:
    """Sends requests to ranks and shows what they print. Everything happens in the thread of the prompt."""

    def __init__(
        self,
        run: "subprocess.Popen[bytes]",
        ranks: list[RankConnection],
        folder: Path,
        launcher_output: "LauncherOutput",
    ) -> None:
        self._run, self._folder, self._launcher_output = run, folder, launcher_output
        self.all = {rank.number: rank for rank in ranks}
        self._console = Console({1: sys.stdout, 2: sys.stderr}, len(ranks), lambda *_: True, window_s=_FOLD_S)
        self._selector = selectors.DefaultSelector()
        for rank in ranks:
            self._selector.register(rank.link, selectors.EVENT_READ, rank)
        self._count = self._groups = 0

    def choose(self, option: str, text: str) -> tuple[int, ...]:
        """Those that an option names by `2`, `0,2-3` or `all`."""
        named = read_ranks(option, text)
        if missing := [rank for rank in named or () if rank not in self.all]:
            raise UsageError(f"there is no rank {missing[0]}: they are {list_of(self.all)}")
        return tuple(self.all) if named is None else named

    def run(self, code: str, to: Collection[int], number: int) -> dict[int, float]:
        """Run it there. Returns the seconds by rank; of ranks that failed, the traceback is shown."""
        file = self._folder / f"in-{number}.py"  # a file, so that explain and tracebacks can show its lines
        file.write_text(code + "\n")
        return self.ask("run", to, code=code, file=str(file))

    def ask(self, kind: str, to: Collection[int], **arguments: Any) -> dict[int, float]:
        """Ask these ranks, and wait until all have answered. Ctrl-C cancels the request."""
        self._count += 1
        asked = [self.all[number] for number in to]
        for rank in asked:
            rank.waits_for, rank.result, rank.errors, rank.displays = self._count, "", "", []
            _send(rank.link, {"kind": kind, "id": self._count, "arguments": arguments})
        try:
            self._wait(asked, lambda: False)
        except KeyboardInterrupt:
            self._cancel(asked)
        for rank in asked:
            self._console.feed(rank.number, 1, rank.result.encode())
        self._console.flush()
        self._show_displays(asked)
        self._show_errors(asked)
        return {rank.number: rank.seconds for rank in asked}

    def _cancel(self, asked: list[RankConnection]) -> None:
        for rank in self.all.values():
            _send(rank.link, {"kind": "interrupt"})
        until_s = time.monotonic() + _BACK_S
        self._wait(asked, lambda: time.monotonic() > until_s)
        if stuck := [rank.number for rank in asked if rank.waits_for]:
            raise EndedError(f"{ranks_in_words(stuck)} did not come back from this line, and the shell ends")
        for rank in asked:
            rank.errors = ""  # the error says only that the line was interrupted
        self._groups += 1
        print("cancelled: the ranks keep their variables, and have a new group")
        self.ask("regroup", list(self.all), number=self._groups)

    def complete(self, text: str) -> list[str]:
        """Names on rank 0 that begin so."""
        first = self.all[0]
        self._count += 1
        first.waits_for, first.errors, first.completions = self._count, "", []
        _send(first.link, {"kind": "complete", "id": self._count, "arguments": {"text": text}})
        self._wait([first], lambda: False)
        return first.completions

    def _wait(self, asked: list[RankConnection], is_over: Callable[[], bool]) -> None:
        while any(rank.waits_for for rank in asked) and not is_over():
            for key, _ in self._selector.select(_LOOK_S):
                self._read(key.data)
            self._console.tick()
            self._launcher_output.show()
        self._console.flush()

    def _read(self, rank: RankConnection) -> None:
        data = rank.link.recv(1 << 16)
        if not data:
            self._console.flush()
            self._run.wait(_END_S)
            self._launcher_output.show()
            raise EndedError("the ranks have ended, and the shell with them")
        *lines, rank.partial = (rank.partial + data).split(b"\n")
        for line in lines:
            self._take(rank, json.loads(line))

    def _take(self, rank: RankConnection, message: dict[str, Any]) -> None:
        match message["kind"]:
            case "output":
                self._console.feed(rank.number, message["stream"], message["text"].encode())
            case "completions":
                rank.completions = message["names"]
            case "display":
                rank.displays.append(message["bundle"])
            case "done" if message["id"] == rank.waits_for:
                self._console.feed_line_end(rank.number)
                rank.waits_for, rank.seconds = 0, message["seconds"]
                rank.result, rank.errors = message["result"], message["error"]

    def _show_displays(self, asked: list[RankConnection]) -> None:
        """Ranks of a terminal have none."""

    def _show_errors(self, asked: list[RankConnection]) -> None:
        for rank in asked:
            self._console.feed(rank.number, 2, rank.errors.encode())
        self._console.flush()

    def end(self) -> int:
        """The exit code of the run."""
        for rank in self.all.values():
            rank.link.close()
        try:
            return self._run.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._run.terminate()
            return self._run.wait()


class LauncherOutput:
    """Output of the run's launcher. In a terminal it prints by itself. In a notebook it prints to a file, which is
    shown below the cell."""

    def __init__(self, path: Path, is_hidden: bool) -> None:
        self._reader = open(path, "w+", errors="replace") if is_hidden else None  # noqa: SIM115  (kept open)

    @property
    def target(self) -> IO[str] | None:
        return self._reader

    def show(self) -> None:
        if self._reader is not None:
            self._reader.seek(self._shown)
            text = self._reader.read()
            self._shown = self._reader.tell()
            print(text, end="", file=sys.stderr)

    _shown = 0


@contextlib.contextmanager
def started(
    options: ShellOptions, kind: type[Ranks] = Ranks, is_notebook: bool = False
) -> Iterator[tuple[Ranks, Path]]:
    """These ranks in a run of their own, and the folder of the run. In a notebook they send pictures, too. Every rank
    is connected by way of its agent and the run's launcher, on whatever host it is."""
    with tempfile.TemporaryDirectory(prefix="rollcall-shell-") as folder, socket.socket(socket.AF_UNIX) as listener:
        path = f"{folder}/ranks"  # only this user may open the folder
        listener.bind(path)
        listener.listen(MOST_RANKS)
        waiting = Path(folder, "prompt.py")
        waiting.write_text(WAITING)
        arguments = [*options.arguments(), "--prompt", path, "-m", "rollcall.shell", str(waiting)]
        arguments += ["notebook"] if is_notebook else []
        launcher_output = LauncherOutput(Path(folder, "launcher.txt"), is_hidden=is_notebook)
        # A session of its own: the terminal's Ctrl-C is for the prompt.
        run = subprocess.Popen(
            [sys.executable, "-m", "rollcall", "run", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=launcher_output.target,
            stderr=launcher_output.target,
            start_new_session=True,
        )
        try:
            ranks, run_folder = _accept_ranks(listener, run, launcher_output)
            yield kind(run, ranks, Path(folder), launcher_output), run_folder
        finally:
            if run.poll() is None:
                run.terminate()
                run.wait()


def _accept_ranks(
    listener: socket.socket, run: "subprocess.Popen[bytes]", launcher_output: LauncherOutput
) -> tuple[list[RankConnection], Path]:
    """All ranks, once their group is there, and the folder of the run."""
    listener.settimeout(_LOOK_S)
    ranks: list[RankConnection] = []
    world_size, folder = MOST_RANKS, Path()
    while len(ranks) < world_size:
        try:
            link, _ = listener.accept()
        except TimeoutError:
            if run.poll() is not None:
                launcher_output.show()
                raise EndedError("the ranks did not start, and so there is no prompt") from None
            continue
        link.setblocking(True)
        of_launcher, of_rank, rest = _read_greeting(link)
        world_size, folder = of_rank["world_size"], Path(of_launcher["folder"])
        check_size(world_size)
        ranks.append(RankConnection(of_rank["rank"], link, rest))
    return sorted(ranks, key=lambda rank: rank.number), folder


def _read_greeting(link: socket.socket) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """A line of the run's launcher, a line of the rank, and the beginning of the next."""
    data = b""
    while data.count(b"\n") < 2:
        chunk = link.recv(1 << 16)
        if not chunk:
            raise EndedError("a rank ended before its group was there")
        data += chunk
    first, second, rest = data.split(b"\n", 2)
    return json.loads(first), json.loads(second), rest


def _send(link: socket.socket, message: dict[str, Any]) -> None:
    try:
        link.sendall(json.dumps(message).encode() + b"\n")
    except OSError:
        raise EndedError("the ranks have ended, and the shell with them") from None
