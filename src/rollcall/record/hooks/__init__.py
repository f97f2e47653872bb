"""Hooks into torch for recording. They are installed once per process and call the current sink. ../cpp/calls.py puts
calls in C++ around two of them, which leave to them what is unusual.

sink           the interface that hooks call, which recorders implement
patching       puts a hook around a function, and keeps its errors away from the program
importlib_bootstrap  what a program calls then in place of the function
arguments      how the arguments of ProcessGroup's methods are read
process_group  every op that Python calls
works          their handles: what is waited for, polled, or asked for its result
groups         what makes groups
ddp            DDP modules, and the phases of a training step
reducer        the all_reduces of DDP's reducer, for the Python recorder
functional     functional collectives: DTensor, compiled programs
symmetric_memory  collectives on symmetric memory
exits          signals that a rank sends, and os._exit
"""

from dataclasses import dataclass
from importlib import import_module

from rollcall.compat.private_names.recorder import record_ddp, record_exits, record_functional, record_process_group
from rollcall.record.hooks import patching

# Imported when they are installed: a torch that lacks a name which one of them imports still has the others.
_HOOKS = (
    (record_process_group.PATCH, "process_group"),
    (record_process_group.PATCH, "works"),
    (record_process_group.PATCH, "groups"),
    (record_ddp.PATCH, "ddp"),
    (record_functional.PATCH, "functional"),
    (record_functional.PATCH, "symmetric_memory"),
    (record_exits.PATCH, "exits"),
)
_is_installed = False


def install() -> None:
    global _is_installed
    if not _is_installed:
        _is_installed = True
        for patch, module in _HOOKS:
            if not patch.is_off():
                _install(patch.name, module)


def _install(name: str, module: str) -> None:
    try:
        import_module(f"{__name__}.{module}").install_all()
    except Exception as error:  # a torch that we do not know must not keep the program from running
        patching.seek(f"{name} ({type(error).__name__}: {error})", False)


@dataclass(frozen=True)
class Places:
    """The hooks that have a place in this torch, and those that have none: what these would record is not recorded."""

    seen: tuple[str, ...]
    missing: tuple[str, ...]

    def __str__(self) -> str:
        said = f"seen {len(self.seen)} of {len(self.seen) + len(self.missing)}"
        return f"{said}, no place for {', '.join(self.missing)}" if self.missing else said


def places() -> Places:
    """Returns the places of the installed hooks."""
    seen = tuple(name for name, is_there in patching.sought.items() if is_there)
    return Places(seen, tuple(name for name in patching.sought if name not in seen))
