"""The only folder that hooks into torch for recording. Hooks are installed once per process and call the current sink.

sink           the interface that hooks call, which recorders implement
patching       puts a hook around a function, and keeps its errors away from the program
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

from rollcall.compat.private_names import record_ddp, record_exits, record_functional, record_process_group
from rollcall.record.hooks import ddp, exits, functional, groups, process_group, symmetric_memory, works

_HOOKS = (
    (record_process_group.PATCH, process_group),
    (record_process_group.PATCH, works),
    (record_process_group.PATCH, groups),
    (record_ddp.PATCH, ddp),
    (record_functional.PATCH, functional),
    (record_functional.PATCH, symmetric_memory),
    (record_exits.PATCH, exits),
)
_is_installed = False


def install() -> None:
    global _is_installed
    if not _is_installed:
        _is_installed = True
        for patch, hooks in _HOOKS:
            if not patch.is_off():
                hooks.install_all()
