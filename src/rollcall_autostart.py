"""Records ranks that another launcher starts, without a change to the program: ROLLCALL_RECORD=DIR torchrun train.py

rollcall_autostart.pth imports this file when Python starts, if $ROLLCALL_RECORD is set. It stands outside the package
and imports nothing: a Python that forms no process group pays less than a millisecond, and writes nothing.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_MODULE = "torch.distributed.distributed_c10d"
_VARIABLE = "ROLLCALL_RECORD"
on_error: "list[Callable[[BaseException], None]]" = []  # called with what the function of a child raised


class _Finder:
    """Waits for torch to import the module that forms groups, and then leaves the import system."""

    @classmethod
    def find_spec(cls, name: str, path: "list[str] | None" = None, target: object = None) -> "ModuleSpec | None":
        if name != _MODULE:
            return None
        from importlib.util import find_spec

        sys.meta_path.remove(cls)  # type: ignore[arg-type]
        spec = find_spec(name)  # by whatever finder: not every torch lies in a folder
        if spec is not None:
            _after_import(spec.loader)
        return spec


def _after_import(loader: "Any") -> None:
    if not hasattr(loader, "__dict__") or isinstance(loader, type):  # others may use it, too
        return
    execute: Callable[[ModuleType], None] = loader.exec_module

    def exec_module(module: "ModuleType") -> None:
        del loader.exec_module
        execute(module)
        if hasattr(module, "init_process_group"):  # torch may be built without distributed
            _watch(module)
            _watch_children()

    loader.exec_module = exec_module


def _watch(module: "Any") -> None:
    """The first process group that is formed in this process begins the recording."""
    from functools import wraps

    original = module.init_process_group

    @wraps(original)
    def init_process_group(*args: "Any", **kwargs: "Any") -> "Any":
        begin, function = _recorder(), original
        if begin is not None and begin(original, args, kwargs):
            _take_requests()
            function = module.init_process_group  # as the recorder has wrapped it meanwhile
        try:
            return function(*args, **kwargs)
        except BaseException as error:  # its traceback has no frame of ours: rollcall.record.hooks.importlib_bootstrap
            traceback = error.__traceback__
            BaseException.with_traceback(error, traceback and traceback.tb_next)
            raise

    module.init_process_group = init_process_group


def _watch_children() -> None:
    """From Python 3.13 on, multiprocessing has forgotten the error of a child when the child's finalizers run. And the
    recording begins inside of `run`, too late to see what that raises."""
    from functools import wraps
    from multiprocessing.process import BaseProcess

    bootstrap = getattr(BaseProcess, "_bootstrap", None)
    if sys.version_info < (3, 13) or bootstrap is None:
        return

    @wraps(bootstrap)
    def _bootstrap(self: "Any", *args: "Any", **kwargs: "Any") -> "Any":
        run = self.run  # often a method of the program's own class

        def run_and_tell() -> None:
            try:
                run()
            except BaseException as error:  # its traceback has no frame of ours
                traceback = error.__traceback__
                BaseException.with_traceback(error, traceback and traceback.tb_next)
                for tell in on_error:
                    tell(error)
                raise

        self.run = run_and_tell
        return bootstrap(self, *args, **kwargs)

    BaseProcess._bootstrap = _bootstrap


def _recorder() -> "Callable[..., bool] | None":
    """What begins a recording; None where that is not possible. The program goes on without."""
    try:
        if other := _other_rollcall():
            _say(f"this process is not recorded: its `import rollcall` finds {other}; rename that to have a recording")
            return None
        from rollcall.record.autostart import begin
    except ImportError:  # another environment's rollcall, or none
        return None
    except Exception as error:  # a torch that the recorder does not fit
        _say(f"this process is not recorded ({error})")
        return None
    return begin


def _other_rollcall() -> str:
    """A module of the program that has our name, found without running it; empty if there is none."""
    from importlib.util import find_spec

    spec = find_spec("rollcall")
    ours = os.path.join(os.path.dirname(__file__), "rollcall", "__init__.py")
    origin = ours if spec is None or spec.origin is None else spec.origin
    return "" if os.path.realpath(origin) == os.path.realpath(ours) else origin


def _say(text: str) -> None:
    if sys.stderr is not None and not sys.stderr.closed:
        print(f"rollcall: {text}", file=sys.stderr)


def _take_requests() -> None:
    """A fresh interpreter of `rollcall run` can be debugged, like one that was forked."""
    from rollcall.worker import agent_connection

    if agent_connection.rank() >= 0:
        from rollcall.worker import fresh_interpreter

        fresh_interpreter.begin()


def breakpointhook(*_args: object, **_kwargs: object) -> None:
    """What `breakpoint()` calls in such an interpreter, and in its children."""
    from rollcall.worker.main import stop_in

    stop_in(sys._getframe(1))


def _fix_folder() -> None:
    """A relative folder is meant from where the job is started. This process and its children may change theirs."""
    folder = os.environ.get(_VARIABLE, "")
    if folder in ("", "0", "1"):  # no folder, but whether rollcall.init records
        return
    try:
        os.environ[_VARIABLE] = os.path.abspath(folder)
    except OSError:  # the current folder was removed: what cannot be written is said later
        return


_fix_folder()
if "ROLLCALL_LINK" in os.environ and "PYTHONBREAKPOINT" not in os.environ:
    sys.breakpointhook = breakpointhook
sys.meta_path.insert(0, _Finder)  # type: ignore[arg-type]
