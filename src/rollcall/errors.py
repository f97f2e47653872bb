"""The errors of rollcall. Each message says what was found, what was expected, and what to do now."""

import sys
from types import TracebackType


class RollcallError(Exception):
    """Anything rollcall can say in one sentence. `exit_code` is what a command ends with."""

    exit_code = 1
    quiet = False  # another rank says it


class UsageError(RollcallError):
    """What was typed, set or passed cannot work."""

    exit_code = 2


class WorldError(RollcallError):
    """The world did not come together: ranks are missing, doubled or out of reach."""


class RankError(RollcallError):
    """A rank ended in a way that ends the run."""


def say(message: object) -> None:
    """One line of rollcall's own on stderr."""
    name = "\x1b[1mrollcall:\x1b[0m" if sys.stderr.isatty() else "rollcall:"
    print(f"{name} {message}", file=sys.stderr, flush=True)


def speak_plainly() -> None:
    """Let an uncaught RollcallError end this program with its sentence and exit code, without a traceback.

    Other exceptions go to the hook that was there before.
    """
    before = sys.excepthook
    if getattr(before, "speaks_plainly", False):
        return

    def hook(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
        if not isinstance(error, RollcallError):
            before(kind, error, where)
            return
        if not error.quiet:
            say(error)
        # SystemExit out of a hook is the one way to choose the interpreter's exit code here.
        raise SystemExit(error.exit_code)

    hook.speaks_plainly = True  # type: ignore[attr-defined]
    sys.excepthook = hook
