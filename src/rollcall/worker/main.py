"""Makes a fork of the fork server behave like `python script.py`.

A program must see what it would see in a fresh interpreter. If the agent finds that a fork cannot do this, the rank
becomes a fresh interpreter by exec: same process, same streams. docs/fidelity.md lists the differences; a test compares
everything else with torchrun.
"""

import atexit
import contextlib
import gc
import importlib.machinery
import io
import os
import runpy
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any, NoReturn, cast

from rollcall.linux import prctl, process_title
from rollcall.protocol.plan import Program
from rollcall.worker import agent_connection, numa_binding
from rollcall.worker.traceback_filter import users_part

_LOW_PRIORITY = "10"  # a nice value; each rank is a session, and the kernel shares the processor among sessions
_EXIT_FLUSH_FAILED = 120  # what CPython exits with when stdout could not be flushed
_LONG = 1 << 63


def run_request(request: dict[str, Any], _extra_fds: list[int]) -> NoReturn:
    """Run the rank that the agent asked for."""
    prctl.restore_stop_signals()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    program = Program(**request["program"])
    if mode := request.get("numa_binding"):
        numa_binding.bind(mode, request["local_rank"])
    is_warm = request["start"] == "warm"
    if where := request.get("agent_connection"):  # nobody asks ranks that have no agent
        (agent_connection.use if is_warm else agent_connection.use_after_exec)(**where)
    if is_warm:
        run_here(program, request["record"])
    run_fresh(program)


def run_fresh(program: Program) -> NoReturn:
    command = program.command()
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"rollcall: cannot start {command[0]}: {error.strerror}", file=sys.stderr)
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def run_here(program: Program, record: dict[str, Any] | None, seed: Callable[[], None] | None = None) -> NoReturn:
    """Run the program in this very process, as the interpreter's own start would. `seed` sets the random state."""
    if record is not None:
        _begin_recording(**record)
    if agent_connection.rank() >= 0:
        if "PYTHONBREAKPOINT" not in os.environ:  # by which Python chooses another debugger
            sys.breakpointhook = breakpointhook
        take_requests()
    main = sys.modules["__main__"] = _new_main()
    sys.argv = [program.target, *program.args]
    sys.orig_argv = program.command()
    process_title.show(sys.orig_argv)
    (seed or forget_random_state)()
    gc.enable()
    _finish(_guard(program, main), main)


def _begin_recording(folder: str, rank: int, world_size: int, attempt: int) -> None:
    try:
        from rollcall.record import recorder  # here: below, an error says that the recorder does not fit this torch

        recorder.begin(Path(folder), rank, world_size, attempt)
    except OSError as error:  # a full disk must not keep the program from running
        print(f"rollcall: this rank is not recorded ({error.strerror})", file=sys.stderr)
    except Exception as error:  # nor a torch that the recorder does not fit
        if rank == 0:
            print(f"rollcall: no rank is recorded ({type(error).__name__}: {error})", file=sys.stderr)


def take_requests() -> None:
    """Debuggers find their terminal at the launcher."""
    requests = sys.modules.get("rollcall.record.on_request.requests")  # not imported here: a rank may not be recorded
    if requests is not None:
        requests.HANDLERS.update(attach=_attach, debugpy=_listen)


def breakpointhook(*_args: object, **_kwargs: object) -> None:
    """What `breakpoint()` calls."""
    stop_in(sys._getframe(1))


def stop_in(frame: FrameType) -> None:
    """A child of a rank has no terminal at the launcher."""
    if agent_connection.rank() < 0:
        import pdb  # here, and in debugger: few programs need it

        pdb.Pdb().set_trace(frame)
        return
    from rollcall.worker import debugger

    debugger.stop_in(frame)


def _attach(request: dict[str, Any]) -> dict[str, Any]:
    from rollcall.worker import debugger

    return debugger.attach(request)


def _listen(request: dict[str, Any]) -> dict[str, Any]:
    from rollcall.worker import debugger

    return debugger.listen(request)


def _new_main() -> ModuleType:
    main = ModuleType("__main__")
    main.__dict__.update(__builtins__=sys.modules["builtins"], __annotations__={})
    return main


def forget_random_state() -> None:
    """Python's own generator reseeds itself after a fork; those of numpy and torch do not."""
    numpy_random, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
    if numpy_random is not None:
        numpy_random.seed()
    if torch is not None:
        torch.default_generator.seed()


def _guard(program: Program, main: ModuleType) -> int:
    """Run to the end, and end as the interpreter would: its exit code, its words on stderr."""
    try:
        _RUNNERS[program.kind](program.target, main)
    except SystemExit as stop:
        stop.__traceback__ = users_part(stop.__traceback__)
        return _noted(_exit_code(stop), stop)
    except BaseException as error:
        error.__traceback__ = users_part(error.__traceback__)
        return _noted(_report(error), error)
    return _noted(0)


def _noted(code: int, error: BaseException | None = None) -> int:
    """Record how the program ended."""
    recorder = sys.modules.get("rollcall.record.recorder")
    if recorder is not None and recorder.current() is not None:
        recorder.current().note_end(code, error)
    return code


def _run_script(target: str, main: ModuleType) -> None:
    path = Path(target)
    if path.is_dir() or _is_zip(path):
        _set_first_path(os.path.abspath(target))
        runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined]  # as CPython does
        return
    _set_first_path(str(path.resolve().parent))
    full = os.path.join(os.getcwd(), target)
    code, loader = _load(full)
    main.__dict__.update(__file__=full, __cached__=None, __loader__=loader)
    wait_longer_if_stopping(code)
    exec(code, main.__dict__)


def _load(path: str) -> tuple[CodeType, object]:
    if path.endswith(".pyc"):
        compiled = importlib.machinery.SourcelessFileLoader("__main__", path)
        return cast(CodeType, compiled.get_code("__main__")), compiled
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    return code, importlib.machinery.SourceFileLoader("__main__", path)


def wait_longer_if_stopping(code: CodeType) -> None:
    """An op keeps the limit that its group has when it begins, and others may be in it when this rank stops."""
    if "rollcall.record.on_request.requests" in sys.modules and _has_breakpoint(code):
        sys.modules["rollcall.compat.torch_timeouts"].wait_longer(always=True)


def _has_breakpoint(code: CodeType) -> bool:
    functions = (each for each in code.co_consts if isinstance(each, CodeType))
    return "breakpoint" in code.co_names or any(map(_has_breakpoint, functions))


def _run_module(target: str, _main: ModuleType) -> None:
    _set_first_path(os.getcwd())
    sys.argv[0] = "-m"
    runpy._run_module_as_main(target)  # type: ignore[attr-defined]  # as CPython does


_RUNNERS = {"script": _run_script, "module": _run_module}


def _is_zip(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(4) == b"PK\x03\x04"


def _set_first_path(entry: str) -> None:
    """The agent has none of its own; -P and PYTHONSAFEPATH leave it out for everybody."""
    if not sys.flags.safe_path:
        sys.path.insert(0, entry)


def _exit_code(stop: SystemExit) -> int:
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code & 0xFF if -_LONG <= stop.code < _LONG else 0xFF  # CPython takes it for a C long, or for -1
    print(stop.code, file=sys.stderr)
    return 1


def _report(error: BaseException) -> int:
    """What the interpreter does with an uncaught exception."""
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit as stop:
        return _exit_code(stop)
    except BaseException:
        print("Error in sys.excepthook:", file=sys.stderr)
        traceback.print_exc()
        print("\nOriginal exception was:", file=sys.stderr)
        traceback.print_exception(error)
    return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1


def _lower_priority() -> None:
    """The program is over; taking the process down takes 10 ms, and other ranks may still be working."""
    with contextlib.suppress(OSError), open("/proc/self/autogroup", "w") as file:  # not every kernel has them
        file.write(_LOW_PRIORITY)


def _finish(code: int, main: ModuleType) -> NoReturn:
    """Shut down in the interpreter's order: threads, atexit, the program's globals, the streams.

    The preloaded modules are not torn down: that would take a third of a second and copy every page.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    _lower_priority()
    if threading.active_count() == 1:  # a daemon thread may still need the globals
        main.__dict__.clear()
        gc.collect()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except (OSError, ValueError):
            code = _EXIT_FLUSH_FAILED
    if code == -signal.SIGINT:  # the parent must see the signal, as with any Ctrl-C
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code)
