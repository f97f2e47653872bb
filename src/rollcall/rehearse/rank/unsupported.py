"""What cannot be rehearsed: a sentence with the line, and what to do."""

from pathlib import Path

from rollcall.errors import RollcallError

found = ""  # the first that this process has come to: its program may catch the error and go on


class Unsupported(RollcallError):  # noqa: N818  (it is read as a sentence: raise Unsupported(...))
    """Raised in the script, at the line that cannot be rehearsed."""

    def __init__(self, what: str, advice: str) -> None:
        from rollcall.rehearse.rank.values import (
            users_line,  # here: it imports torch, and the launcher reads this module
        )

        file, line = users_line()
        sentence = f"{Path(file).name}:{line}: {what}; {advice}"
        super().__init__(sentence)
        global found
        found = found or sentence
