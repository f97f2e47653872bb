"""Questions to the launcher of a run: a file in the run's folder, and the answer in another one.

So it works wherever the run's folder is seen, and needs no port.
"""

import contextlib
import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from rollcall.errors import UsageError, WorldError
from rollcall.protocol.exit_codes import how_it_ended
from rollcall.protocol.rank_ranges import ranks_in_words
from rollcall.runs import REQUESTS, is_over, read_facts

_INTERVAL_S = 0.02


def check_runs(folder: Path) -> dict[str, Any]:
    """The facts of a run; UsageError unless it is running."""
    facts = read_facts(folder)
    if is_over(facts):
        outcome = facts.get("outcome", "running")
        how = "its launcher was killed" if outcome == "running" else outcome
        raise UsageError(f"{folder.name} has ended ({how}): `rollcall explain` says where its ranks were")
    if facts.get("plan") and not facts.get("attempts"):
        raise UsageError(f"no rank of {folder.name} has begun yet: ask again in a moment")
    return facts


def check_has_launcher(folder: Path) -> None:
    """Ranks that another launcher has started have nobody who could pass anything on."""
    if not check_runs(folder).get("plan"):
        raise UsageError(f"the ranks of {folder.name} were not started by `rollcall run`, so they cannot be asked")


@contextlib.contextmanager
def asked(folder: Path, kind: str, content: Any = None) -> Iterator[Path]:
    """A question, while it is open. Files of the same name and another suffix belong to it, and go with it."""
    import secrets  # here: the launcher imports this file, too, and asks nothing

    question = folder / kind / f"{secrets.token_hex(8)}.ask"
    try:
        question.parent.mkdir(exist_ok=True)
        fresh = question.with_suffix(".asking")
        fresh.write_text(json.dumps(content))
        fresh.rename(question)
    except OSError as error:
        raise UsageError(f"cannot ask the run in {folder} ({error.strerror}): its folder must be writable") from error
    try:
        yield question
    finally:
        for path in question.parent.glob(f"{question.stem}.*"):
            with contextlib.suppress(OSError):
                path.unlink()


def answer_to(question: Path, limit_s: float, check: Callable[[], object]) -> dict[str, Any]:
    """Wait for it. `check` raises if it will never come."""
    until_s = time.monotonic() + limit_s
    while time.monotonic() < until_s:
        with contextlib.suppress(FileNotFoundError):
            answer: dict[str, Any] = json.loads(question.with_suffix(".json").read_text())
            return answer
        check()
        time.sleep(_INTERVAL_S)
    raise WorldError(
        f"the launcher of {question.parents[1].name} has not answered for {limit_s:g} s: it is stopped, on a host that"
        " does not see this folder, or of an older version of rollcall"
    )


def write_answer(question: Path, answer: dict[str, Any]) -> None:
    """The launcher's side. Whoever asked may be gone, and the files with it."""
    with contextlib.suppress(OSError):
        fresh = question.with_suffix(".new")
        fresh.write_text(json.dumps(answer))
        fresh.replace(question.with_suffix(".json"))


def ask_ranks(
    folder: Path, ranks: Collection[int] | None, request: dict[str, Any], limit_s: float
) -> dict[int, dict[str, Any]]:
    """Have ranks do something. Returns their answers, by rank."""
    check_has_launcher(folder)
    with asked(folder, REQUESTS, {"ranks": ranks, "request": request}) as question:
        return answers_of(folder, question, limit_s)


def answers_of(folder: Path, question: Path, limit_s: float) -> dict[int, dict[str, Any]]:
    """By rank, to a question to ranks. One sentence if the launcher refuses it, or a rank cannot do it."""
    answer = answer_to(question, limit_s, lambda: check_runs(folder))
    if "error" in answer:
        raise UsageError(answer["error"])
    answers = {int(rank): each for rank, each in answer["answers"].items()}
    for rank, each in sorted(answers.items()):
        if "error" in each:
            raise UsageError(f"rank {rank} {each['error']}")
    return dict(sorted(answers.items()))


def why_no_rank(rank: int, known: Collection[int], exit_codes: Mapping[int, int]) -> str:
    """Why a rank cannot be asked; empty if it runs."""
    if rank not in known:
        return f"there is no rank {rank} in this run: it has {ranks_in_words(known)}"
    return f"rank {rank} has ended: it {how_it_ended(exit_codes[rank])}" if rank in exit_codes else ""


def new_lines(path: Path, read_bytes: int) -> tuple[list[dict[str, Any]], int]:
    """The JSON lines of a file behind those that were read, and how many bytes are read now."""
    try:
        with open(path, "rb") as file:
            file.seek(read_bytes)
            whole = [line for line in file.read().splitlines(keepends=True) if line.endswith(b"\n")]
    except OSError:  # nothing was written yet
        return [], read_bytes
    found = []
    for line in whole:
        with contextlib.suppress(ValueError):  # a damaged line
            found.append(json.loads(line))
    return found, read_bytes + sum(map(len, whole))
