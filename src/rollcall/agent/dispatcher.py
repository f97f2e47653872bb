"""Hands each message of the launcher to the part of the agent that it concerns. Runs in the thread that reads them."""

import os
import queue
import threading
from typing import TYPE_CHECKING

from rollcall.agent.host_questions import HostQuestions
from rollcall.protocol.messages import (
    AskRank,
    Begin,
    Cancel,
    CollectStacks,
    ConnectToRank,
    Debugging,
    DumpStacks,
    Finish,
    ForwardSignal,
    Message,
    SendRings,
    Stop,
    ToRank,
)

if TYPE_CHECKING:
    from rollcall.agent.worker_group import WorkerGroupAgent


class Dispatcher:
    """The worker group joins once elastic is imported; until then no rank runs that a message could concern."""

    def __init__(self, questions: HostQuestions) -> None:
        self._questions = questions
        self.attempts: queue.SimpleQueue[Begin | Finish] = queue.SimpleQueue()
        self.finished = threading.Event()
        self.cancelled = -1  # the newest attempt that failed elsewhere
        self.worker_group: WorkerGroupAgent | None = None

    def handle(self, message: Message) -> None:
        match message:
            case Begin():
                self.attempts.put(message)
            case Finish():
                self.finished.set()
                self.attempts.put(message)
            case Cancel(attempt):
                self.cancelled = attempt
            case Stop(number, now):
                if self.worker_group is None:
                    os._exit(128 + number)
                self.worker_group.stop(number, now)
            case ForwardSignal(number) if self.worker_group is not None:
                self.worker_group.forward(number)
            case DumpStacks(others) if self.worker_group is not None:
                self.worker_group.answers.report_stacks(others)
            case CollectStacks(number) if self.worker_group is not None:
                self.worker_group.answers.send_stacks(number)
            case AskRank(rank, number, request) if self.worker_group is not None:
                self.worker_group.answers.ask_rank(rank, number, request)
            case ToRank(rank, purpose, data) if self.worker_group is not None:
                self.worker_group.connections.send(rank, purpose, data)
            case ConnectToRank(rank, purpose, port) if self.worker_group is not None:
                self.worker_group.connections.open(rank, purpose, port)
            case Debugging(is_on) if self.worker_group is not None:
                self.worker_group.answers.note_debugging(is_on)
            case SendRings(attempt) if self.worker_group is not None:
                self.worker_group.answers.send_new_records(attempt)
            case _:
                self._questions.answer(message)
