"""Where a rank is: what an agent finds out, and `rollcall stacks` shows."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class StackFrame:
    file: str
    line: int  # 0: a frame of C or C++ without one
    function: str
    text: str = ""  # of the line, if it is one of the program's


@dataclass(frozen=True)
class RankStack:
    """The stack of a rank's main thread, innermost first; or why there is none."""

    host: str
    pid: int
    frames: list[StackFrame] = field(default_factory=list)
    why_not: str = ""
