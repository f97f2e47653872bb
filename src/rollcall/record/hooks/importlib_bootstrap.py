"""The functions that a program calls in place of torch's own.

`warnings` does not count frames of files whose path contains both "importlib" and "_bootstrap": those of Python's own
import system, and this one, which has its name for that. So a warning with stacklevel=2 in a wrapped function still
names the program's line, and filters by module or line treat it as they would without us.

An error that passes a function of this file leaves it without a frame of ours in its traceback: what the program prints
or reads of it is what torch raised.
"""

from collections.abc import Callable
from typing import Any

_NOTHING = object()


def recording(
    original: Any,
    hook: Any,
    fail: Callable[[str, Exception], None],
    guarded: Callable[..., Any],
    has_modes: Callable[[], bool],
    unseen: Callable[..., Any],
    name: str,
) -> Any:
    """The original with the hook around it; `fail` is told of an error of the hook. Where the program has modes that
    see functions of torch, the hook is called by `unseen`.

    A method of C++ that Python can override asks whether its caller is the override: a function of the same name, whose
    first argument is the object. If not, it calls the override, which would be this function again, without end.
    """

    def recorded(first: Any = _NOTHING, /, *rest: Any, **kwargs: Any) -> Any:
        args = () if first is _NOTHING else (first, *rest)
        state = None
        try:
            state = unseen(hook.before, args, kwargs) if has_modes() else hook.before(args, kwargs)
        except Exception as error:
            fail(hook.name, error)
        # The original is called outside of the handler: its errors have no context of ours.
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            if state is not None:
                guarded(hook.name, hook.failed, state)
            leave_traceback(error)
            raise
        if state is None:
            return result
        try:
            if has_modes():
                unseen(hook.after, state, result)
            else:
                hook.after(state, result)
        except Exception as error:
            fail(hook.name, error)
        return result

    recorded.__code__ = recorded.__code__.replace(co_name=name)
    return recorded


def chosen(is_excluded: Callable[[], bool], original: Any, recorded: Any) -> Any:
    def called(*args: Any, **kwargs: Any) -> Any:
        if is_excluded():  # outside of the handler: the compiler cannot leave a function in the middle of one
            return original(*args, **kwargs)
        try:
            return recorded(*args, **kwargs)
        except BaseException as error:
            leave_traceback(error)
            raise

    return called


def leave_traceback(error: BaseException) -> None:
    """Takes the frame of the caller, which handles the error, out of its traceback. A bare `raise` after this does not
    add the frame again. Not by assignment: the class of an error may forbid that, as a frozen dataclass does."""
    traceback = error.__traceback__
    BaseException.with_traceback(error, traceback and traceback.tb_next)
