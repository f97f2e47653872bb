"""The launcher's part of a run: it shows what the ranks say, passes signals on, and says how it ended."""

import os
import signal
import sys
import time
from dataclasses import replace

from rollcall.agent.output import STDOUT
from rollcall.compat.torch_dns import impatient_env
from rollcall.coordinator.agents import Crew, Gone, Line, Member
from rollcall.coordinator.attempts import Lead
from rollcall.coordinator.broken_pipe import mute
from rollcall.coordinator.console import Console, visibility
from rollcall.coordinator.early_agent import Agent, interrupts
from rollcall.coordinator.failure import Report
from rollcall.coordinator.run_folder import RankLogs, RunFolder, command_line
from rollcall.coordinator.watch_requests import Watched
from rollcall.errors import RollcallError, say
from rollcall.protocol.exit_codes import how_it_ended, shell_code
from rollcall.protocol.hosts import Host
from rollcall.protocol.log_files import LogFiles
from rollcall.protocol.messages import (
    AttemptOver,
    Ended,
    File,
    Looked,
    Message,
    Note,
    Order,
    Output,
    Refused,
    Shown,
    Stacks,
    Started,
    Still,
    Stop,
)
from rollcall.protocol.plan import Plan
from rollcall.transport import select

_TICK_S = 0.02
_SHOW_S = 10.0  # for all hosts to show where their ranks are
_UNKNOWN_END = 1
_TIMED_OUT = 124  # as timeout(1) has it
_STOP_S = 15.0  # beyond the grace: then hosts that do not answer are left to themselves


def follow(plan: Plan, agent: Agent) -> int:
    """Follow a run on this machine to its end; the exit code is that of the first rank to fail."""
    plan, folder = RunFolder.begin(plan, command_line())
    crew = Crew([Host("this host", plan.slots)], lambda members, connected: None, say)
    crew.adopt(Line(agent.reader, agent.writer, agent.process, greets=False))
    crew.send_all(Order(plan.to_dict(), str(folder.path), agent.stdin_fd, impatient_env()))
    return _Run(plan, folder, crew).to_the_end()


def lead(plan: Plan) -> int:
    """The same on several hosts, which we lead."""
    with select.opened(plan, "run", say) as (plan, start):
        plan, folder = RunFolder.begin(plan, command_line())
        run = _Run(plan, folder, Crew(plan.hosts, start, say))
        run.take_the_lead()
        return run.to_the_end()


class _Run:
    """One run from the launcher's side. With a `lead` it is on several hosts; else the one agent leads itself."""

    def __init__(self, plan: Plan, folder: RunFolder, crew: Crew) -> None:
        self._plan, self._folder, self._crew = plan, folder, crew
        self._lead: Lead | None = None
        self._local_rank: dict[int, int] = {}
        self._console = Console(
            {1: sys.stdout, 2: sys.stderr},
            plan.world_size,
            visibility(plan.show, lambda rank: self._local_rank.get(rank, rank)),
        )
        self._report = Report()
        self._logs = LogFiles(self._say)
        self._watched = Watched(folder.path)
        self._agent_code: int | None = None
        self._world: range | None = None  # all ranks of the attempt, where this launcher leads them all
        self._still: dict[int, Still] = {}  # by node: how its ranks stand
        self._hang_told = False
        self._looking: tuple[set[int], float] | None = None  # who has yet to show where its ranks are, and until when
        self._has_told = False  # why nothing moved
        self._stopped_by: int | None = None
        self._stopped_s = 0.0
        self._timed_out = False
        self._refused: RollcallError | Refused | None = None
        self._started_s = time.monotonic()

    def take_the_lead(self) -> None:
        self._lead = Lead(
            self._plan,
            self._crew,
            str(self._folder.path),
            tell=self._say,
            begun=lambda hosts: self._folder.save(hosts=hosts),
            lost=self._note_loss,
            attempt_over=self._note_over,
        )

    def to_the_end(self) -> int:
        """Until all agents are gone."""
        while not self._crew.is_gone or self._crew.has_more:
            self._heed_interrupts()
            try:
                self._step()
            except BrokenPipeError:  # `rollcall run … | head` has seen enough
                mute()
                interrupts.append(signal.SIGPIPE)
        return self._conclude()

    def _step(self) -> None:
        """Handle what has come, and let the console show what is due."""
        event = self._crew.next(_TICK_S)
        if event is not None:
            self._handle(*event)
        if self._lead is not None:
            self._lead.tick()
            self._watched.tick(self._crew, self._lead.attempt)
        self._watch_for_hangs()
        if event is None or not self._crew.has_more:
            self._console.tick()

    def _handle(self, member: Member, message: Message) -> None:
        match message:
            case Output(rank, stream, data):
                self._console.feed(rank, stream, data)
                if not member.shared:
                    self._keep_log(member, message)
            case Started():
                self._note_start(member, message)
            case Ended():
                self._note_end(member, message)
            case Note(text):
                self._say(text)
            case File():
                self._folder.take(message)
            case AttemptOver(attempt) if self._lead is None:
                self._note_over(attempt, attempt - self._plan.first_attempt < self._plan.max_restarts)
            case Still():
                self._still[member.node] = message
            case Shown(unreachable):
                if self._looking is not None:
                    self._looking[0].discard(member.node)
                self._folder.note_unreachable(self._lead.attempt if self._lead else 0, member.name, unreachable)
            case Looked():
                self._watched.note_answer(member.node)
            case Refused() if self._lead is None:
                self._refused = message
            case Gone(exit_code):
                self._agent_code = exit_code
                self._watched.note_answer(member.node)
        if self._lead is not None:
            self._lead.handle(member, message)

    def _keep_log(self, member: Member, output: Output) -> None:
        attempt = self._lead.attempt if self._lead else 0
        logs = RankLogs.of(self._plan, self._folder.path, attempt, output.rank, output.rank - member.first_rank)
        self._logs.write(logs.stdout if output.stream == STDOUT else logs.stderr, output.data)

    def _note_start(self, member: Member, started: Started) -> None:
        ranks = sorted(map(int, started.pids))
        self._local_rank.update({rank: rank - ranks[0] for rank in ranks})
        if started.attempt != self._report.attempt:
            self._report = Report(started.attempt)
            self._world = range(started.world_size) if self._lead is not None else None
        self._report.note_host(started.host, ranks)
        self._folder.note_attempt(
            started.attempt,
            hosts={started.host: ranks},
            world_size=started.world_size,
            master=started.master,
            pids=started.pids,
        )
        self._folder.save()

    def _note_end(self, member: Member, ended: Ended) -> None:
        traceback = self._console.ended(ended.rank, failed=ended.exit_code != 0)
        # On our clock: who failed first may have failed on a host whose clock is ahead.
        ended = replace(ended, ended_ns=ended.ended_ns - member.clock.offset_ns)
        self._report.add(ended, traceback)
        rank = str(ended.rank)
        self._folder.note_attempt(
            ended.attempt,
            exit_codes={rank: ended.exit_code},
            ended_ns={rank: ended.ended_ns},
            asked={rank: True} if ended.asked else {},
            causes={rank: ended.cause} if ended.cause else {},
        )

    def _watch_for_hangs(self) -> None:
        """Nothing moves on any host, and somebody waits: have it written down where everyone is, then say why."""
        if self._looking is not None:
            awaited, deadline_s = self._looking
            if not awaited or time.monotonic() > deadline_s:
                self._looking = None
                self._note_hang()
            return
        nodes = [member.node for member in self._crew.members if member.is_up]
        stands = [self._still.get(node, Still(False, False)) for node in nodes]
        is_hang = bool(nodes) and all(s.is_still for s in stands) and any(s.waits for s in stands)
        if is_hang and not self._hang_told and self._stopped_by is None:
            addresses = self._folder.addresses()
            for member in self._crew.members:
                member.send(Stacks({name: at for name, at in addresses.items() if name != member.name}))
            self._looking = set(nodes), time.monotonic() + _SHOW_S
        self._hang_told = is_hang

    def _note_hang(self) -> None:
        verdict = self._tell_why(is_running=True)
        if self._plan.on_hang == "stop" and verdict != "busy-rank":  # who computes for long is not hung
            self._timed_out = self._has_told = True
            interrupts.append(signal.SIGTERM)

    def _tell_why(self, is_running: bool = False) -> str:
        from rollcall.explain.terminal import tell  # here: numpy and all are needed only when something went wrong

        return tell(self._folder.path, self._plan.hang_after_s if is_running else None)

    def _note_loss(self, member: Member) -> None:
        """A host is gone in the middle of an attempt, and its ranks in the middle of a line."""
        self._report.lose(member.name, member.lost)
        ranks = range(member.first_rank, member.first_rank + member.host.slots)
        for rank in ranks:
            self._console.ended(rank, failed=False)
        if self._lead is not None:
            told = {"why": member.lost, "is_cut": member.cut_off, "ranks": list(ranks)}
            self._folder.note_attempt(self._lead.attempt, lost={member.name: told})

    def _note_over(self, attempt: int, again: bool) -> None:
        """A failed attempt, of which all ranks are gone."""
        self._folder.note_attempt(attempt, failure=self._report.sentence())
        self._folder.save()
        if again:
            self._console.flush()
            for text in self._report.lines():
                say(text)
            say(f"attempt {attempt} is over; starting attempt {attempt + 1}{self._of_at_most()}")

    def _of_at_most(self) -> str:
        """Where hosts may be lost, too, attempts are not restarts."""
        return f" of at most {self._plan.max_restarts}" if self._lead is None else ""

    def _heed_interrupts(self) -> None:
        limit = self._plan.timeout_s
        if limit is not None and not self._timed_out and time.monotonic() - self._started_s > limit:
            self._timed_out = True
            self._say(f"the run took longer than --timeout {limit:g} s: ending its ranks")
            interrupts.append(signal.SIGTERM)
        while interrupts:
            self._stop(interrupts.pop(0))
        if self._stopped_by is not None and time.monotonic() - self._stopped_s > self._plan.grace_s + _STOP_S:
            self._crew.kill()

    def _stop(self, number: int) -> None:
        again = self._stopped_by is not None
        self._stopped_by = self._stopped_by or number
        self._stopped_s = self._stopped_s or time.monotonic()
        stop = Stop(signal.SIGTERM if number == signal.SIGPIPE else number, now=again)
        if self._lead is not None:
            self._lead.stop(stop)
        else:
            self._crew.send_all(stop)
        if number == signal.SIGINT and not again:
            self._say(f"interrupted: the ranks have {self._plan.grace_s:g} s to end (Ctrl-C again: end them now)")
        if again and not self._report.has_begun:
            self._crew.kill()  # it has not come to its senses yet

    def _say(self, text: str) -> None:
        self._console.flush()
        say(text)

    def _conclude(self) -> int:
        """The last words and the exit code."""
        self._console.flush()
        self._logs.close()
        outcome, code = self._verdict()
        seconds = round(time.monotonic() - self._started_s, 3)
        self._folder.note_clocks({member.name: member.clock.readings for member in self._crew.members})
        self._folder.save(outcome=outcome, exit_code=code, seconds=seconds)
        if code and self._plan.record and not self._has_told and (outcome == "failed" or self._timed_out):
            self._tell_why()
        return code

    def _verdict(self) -> tuple[str, int]:
        refused = self._refused or (self._lead.failed if self._lead else None)
        if refused is not None and self._stopped_by is None:
            say(refused.text if isinstance(refused, Refused) else refused)
            return "failed", refused.exit_code
        if self._timed_out:
            return "stopped", _TIMED_OUT
        if self._stopped_by is not None:
            return "stopped", 128 + self._stopped_by
        if (code := self._report.exit_code) is not None:
            for text in self._report.lines():
                say(text)
            say(f"logs are in {os.path.relpath(self._folder.path)}")
            return "failed", code
        if self._lead is None and self._agent_code != 0:
            say(f"the agent of this host {_how_agent_ended(self._agent_code)}; its ranks were ended with it")
            return "failed", shell_code(self._agent_code or _UNKNOWN_END)
        if why := self._report.why_not_ok(self._world):
            say(f"{why}: this run counts as failed; logs are in {os.path.relpath(self._folder.path)}")
            return "failed", _UNKNOWN_END
        return "ok", 0


def _how_agent_ended(code: int | None) -> str:
    return "ended, and its exit code is not known" if code is None else how_it_ended(code)
