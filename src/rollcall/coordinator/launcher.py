"""One run from the launcher's side: it shows what the ranks print, passes signals on, and says how the run ended."""

import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollcall.coordinator.agents import Agent, Agents, Disconnected
from rollcall.coordinator.attempts import Attempts
from rollcall.coordinator.console import Console, LostOutputError, visibility
from rollcall.coordinator.debugging.debuggers import Debuggers
from rollcall.coordinator.debugging.rank_questions import RankQuestions
from rollcall.coordinator.debugging.relay import Relay
from rollcall.coordinator.failure import HOST_LOST, Report
from rollcall.coordinator.hangs import Hangs, sentence
from rollcall.coordinator.heartbeats import Heartbeats
from rollcall.coordinator.observers import events
from rollcall.coordinator.observers.events import Events
from rollcall.coordinator.observers.monitor_process import MonitorProcess, listener_of
from rollcall.coordinator.observers.stack_questions import StackQuestions
from rollcall.coordinator.observers.watch_requests import WatchRequests
from rollcall.coordinator.run_folder import RunFolder, command_line
from rollcall.errors import WorldError, say
from rollcall.linux import prctl, signals
from rollcall.linux.standard_streams import discard, discard_broken_output, is_lost_output
from rollcall.protocol import messages
from rollcall.protocol.exit_codes import shell_code
from rollcall.protocol.log_files import LogFiles, RankLogs
from rollcall.protocol.messages import (
    STDOUT,
    AttemptOver,
    Debugging,
    Done,
    Ended,
    File,
    ForwardSignal,
    FromRank,
    HostInfo,
    MasterReached,
    Message,
    Note,
    Output,
    Pong,
    PortClosed,
    PortOpened,
    RankAnswered,
    RankConnected,
    RankDisconnected,
    Refused,
    RingsSent,
    StacksCollected,
    StacksDumped,
    Standstill,
    Started,
    Stop,
    UnknownMessage,
)
from rollcall.protocol.plan import Plan
from rollcall.transport import local, select

_TICK_S = 0.02
_UNKNOWN_END = 1
_TIMED_OUT = 124  # as timeout(1) has it
_STOP_S = 15.0  # beyond the grace period: then hosts that do not answer are left to themselves


def run(plan: Plan) -> int:
    """Run the plan; the exit code is that of the first rank to fail."""
    if plan.transport.kind != "local":
        local.end_early()  # an agent may have been started here early: it is not needed
    has_begun = False
    events.check(plan.on_event)
    listener = listener_of(plan.metrics) if plan.metrics else None
    monitor = None
    try:
        with select.opened(plan, "run", say) as (known, start):
            known, folder = RunFolder.begin(known, command_line())
            has_begun = True
            signals.note()
            signals.note_for_ranks()
            prctl.become_subreaper()
            if plan.metrics or (plan.on_event and plan.record):
                monitor = MonitorProcess(folder.path, listener, say)
            return Launcher(known, folder, Agents(known.hosts, start, say), monitor).run()
    finally:
        if monitor is not None:
            monitor.close()
        if has_begun:  # else this process may have children that are not of a run
            _end_what_is_left()


def _end_what_is_left() -> None:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # nothing is: orphans below us would be our children
        return
    from rollcall.linux import process_tree  # here: it imports psutil

    process_tree.end_all(0)


class Launcher:
    """Follows one run to its end. All messages of all agents come by `_handle`, in one thread."""

    def __init__(self, plan: Plan, folder: RunFolder, agents: Agents, monitor: MonitorProcess | None = None) -> None:
        self._plan, self._folder, self._agents = plan, folder, agents
        self._local_rank: dict[int, int] = {}
        self._console = Console(
            {1: sys.stdout, 2: sys.stderr},
            plan.world_size,
            visibility(plan.show, lambda rank: self._local_rank.get(rank, rank)),
        )
        self._report = Report()
        self._world: range | None = None  # all ranks of the attempt, where this launcher leads them all
        self._logs = LogFiles(self.say)
        self._watch_requests = WatchRequests(folder.path)
        self._stack_questions = StackQuestions(folder.path, folder.who_runs)
        self._events = Events(plan.on_event, folder.path, self.say)
        self._monitor = monitor
        self._debuggers = Debuggers(self.say)
        self._relay = Relay(plan.prompt, folder.path, is_here=plan.transport.kind == "local")
        self._rank_questions = RankQuestions(folder.path, folder.who_runs, self._attach, self._debuggers.note_refused)
        self._is_debugging = False
        self._hangs = Hangs(plan, folder, self.say, self._hang_found)
        self._stopped_by: int | None = None
        self._stopped_s = 0.0
        self._is_timed_out = False
        self._started_s = time.monotonic()
        self._heartbeats = Heartbeats(agents, plan.transport.kind == "local", self.say)
        self._attempts = Attempts(plan, agents, str(folder.path), self)

    def run(self) -> int:
        """Runs until all agents are gone, and returns the exit code."""
        while not self._agents.are_gone or self._agents.has_more:
            self._handle_signals()
            try:
                self._step()
            except BrokenPipeError:  # `rollcall run … | head` has seen enough
                discard_broken_output()
                signals.received.append(signal.SIGPIPE)
            except LostOutputError as error:  # a full disk, or a terminal that is gone, ends no training
                discard(error.stream)
                self.say(
                    f"output is no longer shown ({error.strerror}): the run continues, and its logs have all of it"
                )
        return self._conclude()

    def _step(self) -> None:
        """Handle what has come, and let the console show what is due."""
        event = self._agents.next(_TICK_S)
        if event is not None:
            self._handle(*event)
        self._heartbeats.tick()
        self._attempts.tick()
        self._watch_requests.tick(self._agents, self._attempts.attempt)
        self._stack_questions.tick(self._agents, self._attempts.attempt)
        self._tick_debuggers()
        self._rank_questions.tick(self._agents, self._attempts.attempt)
        if self._stopped_by is None:
            self._look_for_hangs()
        self._events.tick()
        for finding in self._monitor.stragglers() if self._monitor is not None else ():
            self._events.emit("straggler", attempt=self._attempts.attempt, verdict=finding)
        if event is None or not self._agents.has_more:
            self._console.tick()

    def _look_for_hangs(self) -> None:
        attempts = self._attempts
        action = self._hangs.tick(attempts.attempt, attempts.taking_part, attempts.restarts_left)
        if action == "stop":
            self._is_timed_out = True
            signals.received.append(signal.SIGTERM)
        elif action == "restart":
            self._report.hang = sentence(self._hangs.verdict)
            attempts.restart()

    def _attach(self, rank: int, question: Path) -> str:
        problem = self._debuggers.attach(rank, question)
        self._tick_debuggers()  # all ranks are to know before one of them stops
        return problem

    def _tick_debuggers(self) -> None:
        self._debuggers.tick()
        if self._debuggers.is_active != self._is_debugging:
            self._is_debugging = self._debuggers.is_active
            self._agents.send_all(Debugging(self._is_debugging))

    def _handle(self, agent: Agent, message: Message) -> None:
        agent.note(message)
        match message:
            case Output(rank, stream, data):
                self._console.feed(rank, stream, data)
                if not agent.shared:
                    self._keep_log(agent, message)
            case Started():
                self._note_start(message)
            case Ended():
                self._note_end(agent, message)
            case Done():
                self._attempts.note_done(agent)
            case AttemptOver():
                self._attempts.note_attempt_over(agent, message)
            case Note(text):
                self.say(text)
            case File():
                self._folder.take(message)
            case Standstill():
                self._hangs.note(agent, message)
            case StacksDumped(unreachable, idle):
                self._hangs.note_stacks(agent, message)
                self._folder.note_attempt(self._attempts.attempt, idle=idle)
                self._folder.note_unreachable(self._attempts.attempt, agent.name, unreachable)
            case StacksCollected(number, stacks):
                self._stack_questions.note_answer(agent.node, number, stacks)
            case RankAnswered(rank, number, answer):
                self._rank_questions.note_answer(rank, number, self._relay.reachable(agent, rank, answer))
            case RankConnected(rank, messages.DEBUGGER):
                self._debuggers.note_opened(agent, rank)
            case FromRank(rank, messages.DEBUGGER, data):
                self._debuggers.note_data(rank, data)
            case RankDisconnected(rank, messages.DEBUGGER):
                self._debuggers.note_closed(rank)
            case RankConnected(rank, purpose):
                self._relay.note_opened(agent, rank, purpose)
            case FromRank(rank, purpose, data):
                self._relay.note_data(rank, purpose, data)
            case RankDisconnected(rank, purpose):
                self._relay.note_closed(rank, purpose)
            case RingsSent():
                self._watch_requests.note_answer(agent.node)
            case HostInfo():
                self._heartbeats.note_host(agent)
            case Pong():
                self._heartbeats.note_pong(agent)
            case PortOpened():
                self._attempts.note_opened(agent, message)
            case MasterReached():
                self._attempts.note_reached(agent, message)
            case PortClosed():
                self._attempts.note_closed()
            case Refused():
                self._attempts.note_refused(agent, message)
            case UnknownMessage():
                self._attempts.fail(WorldError(f"{agent.name} {message.problem}"))
            case Disconnected():
                self._watch_requests.note_answer(agent.node)
                self._stack_questions.note_gone(agent.node)
                self._rank_questions.note_gone(agent.node)
                self._attempts.note_disconnected(agent)

    def _keep_log(self, agent: Agent, output: Output) -> None:
        """Writes the log of a rank on a host that does not share our disk."""
        local_rank = output.rank - agent.first_rank
        logs = RankLogs.of(self._plan, self._folder.path, self._attempts.attempt, output.rank, local_rank)
        self._logs.write(logs.stdout if output.stream == STDOUT else logs.stderr, output.data)

    def _note_start(self, started: Started) -> None:
        ranks = sorted(map(int, started.pids))
        self._local_rank.update({rank: rank - ranks[0] for rank in ranks})
        if started.attempt != self._report.attempt:
            self._report = Report(started.attempt)
            self._world = range(started.world_size) if self._plan.by_hand is None else None
        self._report.note_host(started.host, ranks)
        self._folder.note_attempt(
            started.attempt,
            hosts={started.host: ranks},
            world_size=started.world_size,
            master=started.master,
            pids=started.pids,
        )
        self._folder.save()

    def _note_end(self, agent: Agent, ended: Ended) -> None:
        traceback = self._console.ended(ended.rank, failed=ended.exit_code != 0)
        # On our clock: who failed first may have failed on a host whose clock is ahead.
        ended = replace(ended, ended_ns=ended.ended_ns - agent.clock.offset_ns)
        self._report.add(ended, traceback)
        rank = str(ended.rank)
        self._folder.note_attempt(
            ended.attempt,
            exit_codes={rank: ended.exit_code},
            ended_ns={rank: ended.ended_ns},
            asked={rank: True} if ended.asked else {},
            causes={rank: ended.cause} if ended.cause else {},
        )
        if ended.exit_code != 0 and not ended.asked:
            self._attempts.note_rank_failed()

    # What Attempts has decided.

    def say(self, text: str) -> None:
        self._console.flush()
        try:
            say(text)
        except OSError as error:
            if isinstance(error, BrokenPipeError) or not is_lost_output(error):
                raise
            discard(sys.stderr)

    def attempt_began(self, hosts: dict[str, dict[str, Any]]) -> None:
        self._folder.save(hosts=hosts)
        slots = {name: facts["slots"] for name, facts in hosts.items()}
        self._events.emit("started", attempt=self._attempts.attempt, ranks_by_host=slots)

    def _hang_found(self, attempt: int, verdict: dict[str, Any]) -> None:
        self._events.emit("hang", attempt=attempt, verdict=verdict)

    def host_lost(self, agent: Agent) -> None:
        """A host is gone during an attempt. Its ranks may have printed a part of a line."""
        is_here = self._plan.transport.kind == "local"
        code = shell_code(agent.exit_code) if is_here and agent.exit_code else HOST_LOST
        self._report.lose(agent.name, agent.lost, code)
        for rank in agent.ranks:
            self._console.ended(rank, failed=False)
        lost = {"why": agent.lost, "is_cut": agent.is_cut_off, "ranks": list(agent.ranks)}
        self._folder.note_attempt(self._attempts.attempt, lost={agent.name: lost})
        self._events.emit("host-lost", attempt=self._attempts.attempt, host=agent.name, **lost)

    def attempt_over(self, attempt: int, is_followed: bool) -> None:
        """A failed attempt, of which all ranks are gone."""
        self._folder.note_attempt(attempt, failure=self._report.sentence())
        self._folder.save()
        self._hangs.begin_attempt()
        if is_followed:
            self._console.flush()
            for text in self._report.lines():
                say(text)
            most = "" if self._attempts.hosts_may_differ else f" of at most {self._plan.max_restarts}"
            say(f"attempt {attempt} is over; starting attempt {attempt + 1}{most}")
            self._events.emit("restart", attempt=attempt + 1, why=self._report.sentence())

    # Being stopped.

    def _handle_signals(self) -> None:
        limit = self._plan.timeout_s
        if limit is not None and not self._is_timed_out and time.monotonic() - self._started_s > limit:
            self._is_timed_out = True
            self.say(f"the run took longer than --timeout {limit:g} s: ending its ranks")
            signals.received.append(signal.SIGTERM)
        while signals.forwarded:
            passed_on = signal.Signals(signals.forwarded.pop(0))
            self.say(f"{passed_on.name} is passed on to the ranks that have a handler for it")
            self._agents.send_all(ForwardSignal(passed_on))
        count = len(signals.received)  # a signal may arrive during this loop
        for number in dict.fromkeys(signals.received[:count]):  # one that came twice since the last look is meant once
            self._stop(number)
        del signals.received[:count]
        if self._stopped_by is not None and time.monotonic() - self._stopped_s > self._plan.grace_s + _STOP_S:
            self._agents.kill()

    def _stop(self, number: int) -> None:
        """Only a person who presses Ctrl-C again wants a quicker end. Other signals come twice by themselves:
        timeout(1) signals the process and its group; of a closed terminal, both kernel and shell tell."""
        is_again = self._stopped_by is not None
        if is_again and number != signal.SIGINT:
            return
        self._stopped_by = self._stopped_by or number
        self._stopped_s = self._stopped_s or time.monotonic()
        self._attempts.stop(Stop(signal.SIGTERM if number == signal.SIGPIPE else number, now=is_again))
        if number == signal.SIGINT and not is_again:
            self.say(f"interrupted: the ranks have {self._plan.grace_s:g} s to end (Ctrl-C again: end them now)")
        if is_again and not self._report.has_begun:
            self._agents.kill()

    # The end.

    def _conclude(self) -> int:
        """Print how the run ended, and return the exit code."""
        self._console.flush()
        self._logs.close()
        self._stack_questions.close()
        self._debuggers.close()
        self._rank_questions.close()
        outcome, code = self._outcome()
        seconds = round(time.monotonic() - self._started_s, 3)
        self._folder.note_clocks({agent.name: agent.clock.readings for agent in self._agents.all})
        self._folder.save(outcome=outcome, exit_code=code, seconds=seconds)
        self._events.emit("finished", outcome=outcome, exit_code=code, seconds=seconds)
        is_worth_explaining = outcome == "failed" or self._is_timed_out
        if code and self._plan.record and is_worth_explaining and not self._hangs.is_explained:
            self._hangs.explain()
        self._events.close()
        return code

    def _outcome(self) -> tuple[str, int]:
        """A run is ok only if every rank of its last attempt reported its end with 0."""
        failed = self._attempts.failed
        if failed is not None and self._stopped_by is None:
            say(failed)
            return "failed", failed.exit_code
        if self._is_timed_out:
            return "stopped", _TIMED_OUT
        if self._stopped_by is not None:
            return "stopped", 128 + self._stopped_by
        if (code := self._report.exit_code) is not None:
            for text in self._report.lines():
                say(text)
            say(f"logs are in {os.path.relpath(self._folder.path)}")
            return "failed", code
        if why := self._report.why_not_ok(self._world):
            say(f"{why}: this run counts as failed; logs are in {os.path.relpath(self._folder.path)}")
            return "failed", _UNKNOWN_END
        return "ok", 0
