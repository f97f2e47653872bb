"""`rollcall attach`: a terminal at the debugger of a rank, through files of the run's folder."""

import contextlib
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from rollcall.errors import say
from rollcall.live import questions
from rollcall.runs import REQUESTS, is_over, read_facts

_ANSWER_S = 30.0
_ALIVE_S = 1.0  # between two signs of life
_INTERVAL_S = 0.02


def attach(folder: Path, rank: int) -> None:
    """Runs until the debugger is quit; the rank then continues."""
    questions.check_has_launcher(folder)
    with questions.asked(folder, REQUESTS, {"ranks": [rank], "request": {"do": "attach"}}) as question:
        questions.answers_of(folder, question, _ANSWER_S)
        with _signs_of_life(question):
            _talk(folder, question)


def _talk(folder: Path, question: Path) -> None:
    read = 0
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (input() uses it)
    while True:
        lines, read = questions.new_lines(question.with_suffix(".out"), read)
        for message in lines:
            if "text" in message:
                print(message["text"], end="", flush=True)
            elif "prompt" in message:
                _type(question, message["prompt"])
            else:
                return
        if not lines and is_over(read_facts(folder)):
            say("the run has ended, and the debugger with it")
            return
        time.sleep(_INTERVAL_S)


def _type(question: Path, prompt: str) -> None:
    """Ctrl-C and Ctrl-D leave the debugger."""
    try:
        line: str | None = input(prompt) + "\n"
    except (EOFError, KeyboardInterrupt):
        print()
        line = None
    # The folder is removed when the run ends.
    with contextlib.suppress(FileNotFoundError), open(question.with_suffix(".in"), "a") as file:
        file.write(json.dumps({"line": line}) + "\n")


@contextlib.contextmanager
def _signs_of_life(question: Path) -> Any:
    """If they stop, the launcher lets the rank continue."""
    is_over = threading.Event()

    def touch() -> None:
        while not is_over.wait(_ALIVE_S):
            with contextlib.suppress(OSError):
                os.utime(question)

    threading.Thread(target=touch, name="signs of life", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()


def listen(folder: Path, ranks: tuple[int, ...] | None) -> dict[int, tuple[str, int]]:
    """Have ranks start a server of debugpy: the host and the port of each."""
    answers = questions.ask_ranks(folder, ranks, {"do": "debugpy", "limit_s": _ANSWER_S}, 2 * _ANSWER_S)
    return {rank: (answer["host"], answer["port"]) for rank, answer in answers.items()}
