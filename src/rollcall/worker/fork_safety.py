"""Whether a fork of this process can run a program as `python script.py` would; if not, why."""

import os
import pkgutil
import sys
from pathlib import Path

from rollcall.protocol.plan import Plan, Program
from rollcall.units import plural


def why_not_to_fork(plan: Plan) -> str | None:
    return why_no_process_forks() or _shadowed(folder_of(plan.program, plan.cwd))


def why_no_process_forks() -> str | None:
    """What forbids to fork this process, whatever the fork is to run."""
    return _threads() or _cuda()


def folder_of(program: Program, cwd: str) -> Path:
    """What `sys.path[0]` will be: the script's folder, or with -m the current one."""
    return Path(cwd) if program.kind == "module" else Path(cwd, program.target).resolve().parent


def _threads() -> str | None:
    """A fork copies only the thread that calls it: locks that other threads hold are never released there."""
    count = len(os.listdir("/proc/self/task")) - 1
    return f"a preloaded module started {plural(count, 'thread')}" if count else None


def _cuda() -> str | None:
    torch = sys.modules.get("torch")
    return "a preloaded module initialised CUDA" if torch is not None and torch.cuda.is_initialized() else None


def _shadowed(folder: Path) -> str | None:
    """The program has a module of its own whose name is already taken by a loaded one."""
    for found in pkgutil.iter_modules([str(folder)]):
        loaded = getattr(sys.modules.get(found.name), "__file__", None)
        if loaded is not None and folder not in Path(loaded).parents:
            return f"{folder / found.name} has the name of a module that is already loaded"
    return None
