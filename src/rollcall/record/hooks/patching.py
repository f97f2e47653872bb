"""Installs hooks around functions of torch and Python. What `wrap` returns is the only caller of a hook, and its guard:

- the original is called exactly once, and what it returns or raises is what the program gets;
- an error in a hook ends recording in this process with one line, and does not reach the program; except for one that
  the program itself raised meanwhile, in a signal handler such as that of an alarm, or in another thread.
"""

import dis
import functools
import inspect
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import torch
from torch.compiler import is_compiling

from rollcall.compat import dynamo_frames
from rollcall.errors import say
from rollcall.record.hooks import sink
from rollcall.record.hooks.importlib_bootstrap import chosen, leave_traceback, recording


def _ignore(*_: Any) -> None:
    pass


@dataclass
class Hook:
    """Functions around an original. What `before` returns is handed to `after`, together with the result, or to
    `failed`, if the original raises. Where it returns None, the call is not recorded, and neither of them runs."""

    name: str  # as users know the call
    before: Callable[[tuple[Any, ...], dict[str, Any]], Any]
    after: Callable[[Any, Any], None] = _ignore
    failed: Callable[[Any], None] = _ignore


installed: dict[str, Hook] = {}  # by what is hooked: "ProcessGroup.allreduce"
wrappers: dict[str, Any] = {}  # by the same: what is called in place of torch's own function, its `__wrapped__`
sought: dict[str, bool] = {}  # by name of the hook: whether this torch has a place for it
failures: Counter[str] = Counter()  # by name of the hook


def install(owner: Any, attribute: str, hook: Hook) -> None:
    """Put the hook around `owner.attribute`; not every version of torch has all of them. torch.compile meets what it
    meets without us: of a function of Python it traces the original, and at one of C++ it leaves the compiled code."""
    original = getattr(owner, attribute, None)
    seek(hook.name, original is not None)
    if original is None:
        return
    is_python = isinstance(original, FunctionType)
    recorded = wrap(original, hook, f"{owner.__name__}.{attribute}")
    wrapper = functools.wraps(original)(chosen(is_compiling, original, recorded) if is_python else recorded)
    if not is_python:
        dynamo_frames.break_at(wrapper)
    if isinstance(owner, ModuleType) and isinstance(original, BuiltinFunctionType):
        wrapper.__module__ = owner.__name__  # os.kill is posix.kill, where pickle would look for the wrapper
    if is_python and not hasattr(original, "__wrapped__"):
        # inspect.getfullargspec does not ask what was wrapped. A function that wraps another tells it nothing either.
        wrapper.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    wrappers[f"{owner.__name__}.{attribute}"] = wrapper
    setattr(owner, attribute, wrapper)


def install_in(modules: Sequence[ModuleType], attribute: str, hook: Hook) -> None:
    """Modules that have the same function get the same wrapper: pickle compares them, and so may a program."""
    originals = [getattr(module, attribute, None) for module in modules]
    for module, original in zip(modules, originals, strict=True):
        first = modules[originals.index(original)]
        if module is first:
            install(module, attribute, hook)
        elif original is not None:
            setattr(module, attribute, getattr(first, attribute))


def seek(name: str, is_there: bool) -> None:
    """Note whether a hook has a place. One of several is enough: versions of torch name a method differently."""
    sought[name] = sought.get(name, False) or is_there


def wrap(original: Any, hook: Hook, where: str) -> Any:
    """The original with the hook around it."""
    installed[where] = hook

    recorded = recording(original, hook, report_error, guarded, _has_modes, _unseen, where.rpartition(".")[2])
    dynamo_frames.leave_out(recorded, with_callees=False)
    for part in (hook.before, hook.after, hook.failed, leave_traceback):
        dynamo_frames.leave_out(part, with_callees=True)
    return recorded


def callback(hook: Hook, where: str) -> Callable[..., None]:
    """A function that torch calls, which runs `before` alone."""
    installed[where] = hook

    def called(*args: Any, **kwargs: Any) -> None:
        if not is_compiling():  # an optimizer's step that is traced as a whole
            guarded(hook.name, hook.before, args, kwargs)

    dynamo_frames.leave_out(called, with_callees=True)
    return called


def guarded(name: str, body: Callable[..., Any], *args: Any) -> Any:
    """The result of recording work that runs outside of a wrapper; None if it fails."""
    try:
        return _unseen(body, *args) if _has_modes() else body(*args)
    except Exception as error:
        report_error(name, error)


# Whether the program has modes that see every function of torch. An older or newer torch may have none.
_has_modes: Callable[[], bool] = getattr(torch._C, "_is_torch_function_mode_enabled", lambda: False)


def _unseen(body: Callable[..., Any], *args: Any) -> Any:
    """The program counts or changes what torch is asked for: what a hook reads of a tensor is not the program's."""
    with torch._C.DisableTorchFunction():
        return body(*args)


def report_error(name: str, error: Exception) -> None:
    """Ends recording because of an error in a hook. Raises the error if it is the program's."""
    stop(name, error)
    leave_to_program(error)


def leave_to_program(error: Exception) -> None:
    """Raises the error if it is the program's. Whoever expects errors in a hook, and goes on, asks this first."""
    if _is_of_signal_handler(error) or _is_thrown(error):
        raise error


def _is_of_signal_handler(error: BaseException) -> bool:
    """Whether a signal handler of the program has raised it."""
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    return any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__))


def _is_thrown(error: BaseException) -> bool:
    """Whether another thread of the program has thrown it into this one, as those who limit the time of a call do
    (PyThreadState_SetAsyncExc): code of ours alone does not raise errors of the program's own classes."""
    if not all(_is_ours(frame) for frame, _ in traceback.walk_tb(error.__traceback__)):
        return False
    return type(error).__module__.partition(".")[0] not in _OURS or _is_without_cause(error)


_OURS = {*sys.stdlib_module_names, "torch", "rollcall"}  # packages whose code a hook runs
_CONSTRUCTOR = "namedtuple_"  # collections makes it, in a module of this name and that of the class


def _is_ours(frame: FrameType) -> bool:
    name = str(frame.f_globals.get("__name__"))
    return name.partition(".")[0] in _OURS or name.startswith(_CONSTRUCTOR)


def _is_without_cause(error: BaseException) -> bool:
    """Whether an error, such as TimeoutError, came where no code raises one: it has no text then. Functions of C leave
    the text out of the other two only."""
    if error.args or isinstance(error, StopIteration | MemoryError):
        return False
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return place is not None and place.tb_frame.f_code.co_code[place.tb_lasti] != _RAISE


_RAISE = dis.opmap["RAISE_VARARGS"]


def _code_of(handler: Any) -> CodeType | None:
    """Returns the code of a function, a method or an object that can be called; None for SIG_DFL and SIG_IGN."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    function = handler if hasattr(handler, "__code__") else type(handler).__call__
    return getattr(function, "__code__", None)


def stop(name: str, error: BaseException) -> None:
    """End recording in this process. To continue without the failed call would leave a gap in the ring, which explain
    would take for a call that this rank did not make."""
    failures[name] += 1
    stopped = sink.current
    sink.use(sink.OFF)
    with suppress(Exception):
        text = str(error).partition("\n")[0]  # an error of torch may have a stack of C++ below
        why = f"in {name}: {type(error).__name__}: {text}"
        stopped.turn_off(why)
        if failures.total() == 1:
            say(f"recording stopped {why}; the program continues")
