"""`rollcall stacks`: where every rank of a run is now. Asks the run's launcher by a file in the run's folder."""

import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rollcall.errors import UsageError
from rollcall.live import questions
from rollcall.protocol.exit_codes import how_it_ended
from rollcall.protocol.rank_ranges import ranks_in_words
from rollcall.protocol.rank_stack import RankStack, StackFrame
from rollcall.runs import STACKS

_ANSWER_S = 75.0  # more than the launcher waits for its hosts
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")  # control characters
_MOST_NAME = 72
_LIBRARIES = re.compile(r".*/(?:site-packages|dist-packages|lib/python3\.\d+)/")


@dataclass(frozen=True)
class Answer:
    """Where the ranks of an attempt are that have not ended."""

    attempt: int
    stacks: dict[int, RankStack]
    ranks: tuple[int, ...]  # all of the attempt
    exit_codes: dict[int, int]
    silent: tuple[str, ...] = ()  # hosts that did not answer

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "Answer":
        ranks = sorted(rank for ranks in fields["hosts"].values() for rank in ranks)
        return cls(
            fields["attempt"],
            {int(rank): _stack_of(each) for rank, each in fields["stacks"].items()},
            tuple(ranks),
            {int(rank): code for rank, code in fields["exit_codes"].items()},
            tuple(fields["silent"]),
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def _stack_of(fields: dict[str, Any]) -> RankStack:
    return RankStack(**{**fields, "frames": [StackFrame(**frame) for frame in fields["frames"]]})


def ask(folder: Path) -> Answer:
    """Ask the launcher of the run, wherever it runs."""
    questions.check_runs(folder)
    with questions.asked(folder, STACKS) as question:
        return Answer.from_dict(questions.answer_to(question, _ANSWER_S, lambda: questions.check_runs(folder)))


def chosen(answer: Answer, ranks: Iterable[int] | None) -> Answer:
    """Returns the stacks of these ranks alone. Each of them must be there, and not have ended."""
    if ranks is None:
        return answer
    for rank in (wanted := tuple(ranks)):
        if why := questions.why_no_rank(rank, answer.ranks, answer.exit_codes):
            raise UsageError(why)
    stacks = {rank: stack for rank, stack in answer.stacks.items() if rank in wanted}
    return Answer(answer.attempt, stacks, wanted, {}, answer.silent)


def in_words(answer: Answer) -> str:
    """Ranks with the same stack share a block; the block of most ranks comes first."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for rank, stack in sorted(answer.stacks.items()):
        groups.setdefault(tuple(map(_line_of, stack.frames)) or (_none(stack),), []).append(rank)
    for rank, code in sorted(answer.exit_codes.items()):
        groups.setdefault((f"({how_it_ended(code)})",), []).append(rank)
    unknown = [rank for rank in answer.ranks if rank not in answer.stacks and rank not in answer.exit_codes]
    if unknown:
        groups[(f"({_missing(answer.silent)})",)] = unknown
    ordered = sorted(groups.items(), key=lambda group: (-len(group[1]), group[1]))
    return _blocks([(ranks_in_words(ranks), lines) for lines, ranks in ordered])


def _none(stack: RankStack) -> str:
    return f"(no stack: {stack.why_not})" if stack.why_not else "(in no function of the program: it begins or ends)"


def _missing(silent: tuple[str, ...]) -> str:
    return f"no answer from {', '.join(silent)}" if silent else "not known: it began or ended meanwhile"


def _line_of(frame: StackFrame) -> str:
    place = f"{_file_of(frame)}:{frame.line}" if frame.line else _file_of(frame)
    text = f"   {frame.text}" if frame.text else ""
    return _CONTROL.sub("", f"{_shortened(frame.function)} ({place}){text}")


def _shortened(function: str) -> str:
    """Names of C++ templates may have a thousand letters."""
    return function if len(function) <= _MOST_NAME else function[: _MOST_NAME - 1] + "…"


def _file_of(frame: StackFrame) -> str:
    if not frame.file.endswith(".py"):  # of C or C++: where it was compiled is of no interest
        return os.path.basename(frame.file)
    if not frame.text:
        return _LIBRARIES.sub("", frame.file)
    relative = os.path.relpath(frame.file)
    return frame.file if relative.startswith("..") else relative


def _blocks(groups: list[tuple[str, tuple[str, ...]]]) -> str:
    width = max((len(name) for name, _ in groups), default=0)
    return "\n".join(
        f"{(name if number == 0 else '').ljust(width)} │ {line}"
        for name, lines in groups
        for number, line in enumerate(lines)
    )
