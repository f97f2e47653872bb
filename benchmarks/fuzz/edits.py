"""How the text of a script changes around one line."""

import random
from dataclasses import replace

from benchmarks.fuzz.script import Call, Line, Script


def call_at(script: Script, place: int) -> tuple[Line, Call]:
    line = script.lines[place]
    assert line.call is not None, f"line {place + 1} is no call"
    return line, line.call


def replaced(script: Script, place: int, *new: Line, count: int = 1) -> Script:
    """So many lines from this place on replaced by others."""
    return replace(script, lines=(*script.lines[:place], *new, *script.lines[place + count :]))


def only(rank: int, call: Call, rng: random.Random) -> str:
    """The condition for one rank; in a loop, sometimes for one of its turns."""
    if call.sort == "init":  # before it, the program does not know its rank
        return f'os.environ["RANK"] == "{rank}"'
    if call.loop is not None and rng.random() < 0.5:
        return f"rank == {rank} and {call.loop.variable} == {rng.randrange(call.loop.turns)}"
    return f"rank == {rank}"


def beside(line: Line, text: str, deeper: int = 0, is_guilty: bool = False) -> Line:
    """Another text at the depth of this line, or one deeper."""
    return Line(line.depth + deeper, text, None, is_guilty)


def under(line: Line, is_guilty: bool = False) -> Line:
    """The same line below an `if`."""
    return replace(line, depth=line.depth + 1, is_guilty=is_guilty)


def guilty(line: Line) -> Line:
    return replace(line, is_guilty=True)


def either(line: Line, condition: str, wrong: str) -> tuple[Line, ...]:
    return beside(line, f"if {condition}:"), beside(line, wrong, 1, True), beside(line, "else:"), under(line)


def unless(line: Line, condition: str) -> tuple[Line, ...]:
    return beside(line, f"if not ({condition}):"), under(line, is_guilty=True)


def before(line: Line, condition: str, text: str) -> tuple[Line, ...]:
    return beside(line, f"if {condition}:"), beside(line, text, 1, True), line


def text_of(line: Line) -> str:
    return line.render().strip()


def is_used(line: Line) -> bool:
    """Whether the program needs what this line returns or assigns."""
    is_needed = line.call is not None and (line.call.is_async or line.call.is_needed)
    return is_needed or line.text.startswith("return") or "=" in line.text.split("(")[0]
