"""`rollcall attach`: a terminal at the debugger of a rank, through files of the run's folder."""

import contextlib
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from rollcall.errors import UsageError, say
from rollcall.live import questions
from rollcall.runs import REQUESTS, is_over, read_facts

_ANSWER_S = 30.0
_ALIVE_S = 1.0  # between two signs of life
_INTERVAL_S = 0.02


def attach(folder: Path, rank: int) -> None:
    """Runs until the debugger is quit; the rank then continues."""
    questions.check_has_launcher(folder)
    with questions.asked(folder, REQUESTS, {"ranks": [rank], "request": {"do": "attach"}}) as question:
        answer = questions.answers_of(folder, question, _ANSWER_S)[rank]
        if "error" in answer:
            raise UsageError(f"rank {rank} {answer['error']}")
        with _signs_of_life(question):
            _talk(folder, question)


def _talk(folder: Path, question: Path) -> None:
    read = 0
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (input() uses it)
    while True:
        lines, read = _new_lines(question.with_suffix(".out"), read)
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
    # The folder goes when the run has ended meanwhile.
    with contextlib.suppress(FileNotFoundError), open(question.with_suffix(".in"), "a") as file:
        file.write(json.dumps({"line": line}) + "\n")


def _new_lines(path: Path, read: int) -> tuple[list[dict[str, Any]], int]:
    try:
        with open(path, "rb") as file:
            file.seek(read)
            whole = [line for line in file.read().splitlines(keepends=True) if line.endswith(b"\n")]
    except OSError:  # nothing was said yet
        return [], read
    return [json.loads(line) for line in whole], read + sum(map(len, whole))


@contextlib.contextmanager
def _signs_of_life(question: Path) -> Any:
    """The launcher lets the rank go on if they stop."""
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
    questions.check_has_launcher(folder)
    wanted = None if ranks is None else list(ranks)
    with questions.asked(
        folder, REQUESTS, {"ranks": wanted, "request": {"do": "debugpy", "limit_s": _ANSWER_S}}
    ) as asked:
        answers = questions.answers_of(folder, asked, 2 * _ANSWER_S)
    for rank, answer in sorted(answers.items()):
        if "error" in answer:
            raise UsageError(f"rank {rank} {answer['error']}")
    return {rank: (answer["host"], answer["port"]) for rank, answer in sorted(answers.items())}
