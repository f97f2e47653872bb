"""The errors of rollcall. Each message says what was found, what was expected, and what to do now."""

import contextlib
import sys
from types import TracebackType


class RollcallError(Exception):
    """An error that one sentence explains. `exit_code` is that of the command or program that it ends."""

    exit_code = 1
    quiet = False  # True: another rank prints the message


class UsageError(RollcallError):
    """A command line, a variable or an argument is wrong."""

    exit_code = 2


class WorldError(RollcallError):
    """The ranks did not come together: some are missing, started twice or cannot be reached."""


class LostHostError(WorldError):
    """The host on which all others depend is gone: the same run may work if all of it is started again."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h: try again


class RankError(RollcallError):
    """A rank ended in a way that ends the run."""


def cannot_write(path: object, error: OSError) -> UsageError:
    return UsageError(f"cannot write {path} ({error.strerror}): name a file in a folder that exists and can be written")


def say(message: object) -> None:
    """Print one line of rollcall's own on stderr."""
    name = "\x1b[1mrollcall:\x1b[0m" if sys.stderr.isatty() else "rollcall:"
    print(f"{name} {message}", file=sys.stderr, flush=True)


def say_if_possible(message: object) -> None:
    """The same in a process that is not rollcall's: its program may have closed stderr, or replaced it."""
    with contextlib.suppress(Exception):
        say(message)


def install_error_hook() -> None:
    """Let an uncaught RollcallError end this program with its sentence and exit code, without a traceback.

    Other exceptions go to the hook that was there before.
    """
    before = sys.excepthook
    if getattr(before, "is_rollcalls", False):
        return

    def hook(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
        if not isinstance(error, RollcallError):
            before(kind, error, where)
            return
        if not error.quiet:
            say(error)
        # A SystemExit raised in the hook is the only way to set the interpreter's exit code here.
        raise SystemExit(error.exit_code)

    hook.is_rollcalls = True  # type: ignore[attr-defined]
    sys.excepthook = hook
