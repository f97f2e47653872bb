"""The launcher's part of a run: it shows what the ranks say, passes signals on, and says how it ended."""

import contextlib
import os
import queue
import select
import signal
import sys
import threading
import time

from rollcall.errors import say
from rollcall.launch.console import Console, visibility
from rollcall.launch.messages import AttemptOver, Ended, Message, Note, Order, Output, Refused, Started, Stop, Wire
from rollcall.launch.plan import Plan
from rollcall.launch.report import Report
from rollcall.launch.runs import RunFolder, command_line
from rollcall.launch.start import Agent, interrupts
from rollcall.launch.words import how_it_ended, shell_code

_TICK_S = 0.02
_TIMED_OUT = 124  # as timeout(1) has it


def follow(plan: Plan, agent: Agent) -> int:
    """Follow a run to its end; the exit code is that of the first rank to fail."""
    folder = RunFolder.create(plan, command_line())
    return _Run(plan, folder, agent).to_the_end()


class _Run:
    """One run from the launcher's side."""

    def __init__(self, plan: Plan, folder: RunFolder, agent: Agent) -> None:
        self._plan, self._folder, self._agent = plan, folder, agent.process
        assert self._agent.stdin is not None
        assert self._agent.stdout is not None
        self._wire = Wire(self._agent.stdout, self._agent.stdin)
        self._first_rank = 0
        self._console = Console(
            {1: sys.stdout, 2: sys.stderr},
            plan.world_size,
            visibility(plan.show, lambda rank: rank - self._first_rank),
        )
        self._report = Report()
        self._messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._interrupts = interrupts
        self._stopped_by: int | None = None
        self._timed_out = False
        self._refused: Refused | None = None
        self._started_s = time.monotonic()
        self._over = False
        with contextlib.suppress(BrokenPipeError):
            self._wire.send(Order(plan.to_dict(), str(folder.path), agent.stdin_fd))

    def to_the_end(self) -> int:
        """Until the agent is gone."""
        threading.Thread(target=self._receive, name="agent", daemon=True).start()
        while not self._over:
            self._heed_interrupts()
            try:
                self._step()
            except BrokenPipeError:  # `rollcall run … | head` has seen enough
                _mute()
                self._interrupts.append(signal.SIGPIPE)
        return self._conclude()

    def _step(self) -> None:
        """Handle what has come, and let the console show what is due."""
        with contextlib.suppress(queue.Empty):
            message = self._messages.get(timeout=_TICK_S)
            if message is None:
                self._over = True
                return
            self._handle(message)
            if not self._messages.empty():
                return
        self._console.tick()

    def _receive(self) -> None:
        message: Message | None = None
        with contextlib.suppress(ValueError, OSError):
            while (message := self._wire.receive()) is not None:
                self._messages.put(message)
        self._messages.put(None)

    def _handle(self, message: Message) -> None:
        match message:
            case Output(rank, stream, data):
                self._console.feed(rank, stream, data)
            case Started():
                self._note_start(message)
            case Ended():
                traceback = self._console.ended(message.rank, failed=message.exit_code != 0)
                self._report.add(message, traceback)
                self._folder.note_attempt(message.attempt, exit_codes={str(message.rank): message.exit_code})
            case AttemptOver(attempt):
                self._note_over(attempt)
            case Note(text):
                self._say(text)
            case Refused():
                self._refused = message

    def _note_start(self, started: Started) -> None:
        self._first_rank = min(map(int, started.pids))
        self._report = Report(started.host)
        self._folder.note_attempt(
            started.attempt,
            host=started.host,
            node_rank=started.node_rank,
            world_size=started.world_size,
            master=started.master,
            pids=started.pids,
        )
        self._folder.save()

    def _note_over(self, attempt: int) -> None:
        """A failed attempt, of which all ranks are gone."""
        self._folder.note_attempt(attempt, failure=self._report.sentence())
        self._folder.save()
        if attempt < self._plan.max_restarts:
            self._console.flush()
            for text in self._report.lines():
                say(text)
            say(f"attempt {attempt} is over; starting attempt {attempt + 1} of at most {self._plan.max_restarts}")

    def _heed_interrupts(self) -> None:
        limit = self._plan.timeout_s
        if limit is not None and not self._timed_out and time.monotonic() - self._started_s > limit:
            self._timed_out = True
            self._say(f"the run took longer than --timeout {limit:g} s: ending its ranks")
            self._interrupts.append(signal.SIGTERM)
        while self._interrupts:
            number = self._interrupts.pop(0)
            again = self._stopped_by is not None
            self._stopped_by = self._stopped_by or number
            with contextlib.suppress(BrokenPipeError, ValueError):
                self._wire.send(Stop(signal.SIGTERM if number == signal.SIGPIPE else number, now=again))
            if number == signal.SIGINT and not again:
                self._say(f"interrupted: the ranks have {self._plan.grace_s:g} s to end (Ctrl-C again: end them now)")
            if not self._report.host and again:
                self._agent.kill()  # it has not come to its senses yet

    def _say(self, text: str) -> None:
        self._console.flush()
        say(text)

    def _conclude(self) -> int:
        """The last words and the exit code."""
        self._console.flush()
        agent_code = self._agent.wait()
        outcome, code = self._verdict(agent_code)
        seconds = round(time.monotonic() - self._started_s, 3)
        self._folder.save(outcome=outcome, exit_code=code, seconds=seconds)
        return code

    def _verdict(self, agent_code: int) -> tuple[str, int]:
        if self._refused is not None:
            say(self._refused.text)
            return "failed", self._refused.exit_code
        if self._timed_out:
            return "stopped", _TIMED_OUT
        if self._stopped_by is not None:
            return "stopped", 128 + self._stopped_by
        if (failed := self._report.first_failure()) is not None:
            for text in self._report.lines():
                say(text)
            say(f"logs are in {os.path.relpath(self._folder.path)}")
            return "failed", shell_code(failed.exit_code)
        if agent_code != 0:
            say(f"the agent of this host {how_it_ended(agent_code)}; its ranks were ended with it")
            return "failed", shell_code(agent_code)
        return "ok", 0


def _mute() -> None:
    """Write to nowhere from now on: nobody reads our stdout or stderr any more."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            if _is_broken(stream.fileno()):
                os.dup2(null, stream.fileno())
    os.close(null)


def _is_broken(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))
