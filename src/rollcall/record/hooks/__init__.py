"""The only folder that hooks into torch for recording. Hooks are installed once per process and call the current sink.

sink           the interface that hooks call, which recorders implement
patching       puts a hook around a function, and keeps its errors away from the program
arguments      how the arguments of ProcessGroup's methods are read
process_group  every op that Python calls
ddp            DDP modules, and the phases of a training step
reducer        the all_reduces of DDP's reducer, for the Python recorder
functional     functional collectives: DTensor, compiled programs
exits          signals that a rank sends, and os._exit
"""

from rollcall.record.hooks import ddp, exits, functional, process_group

_is_installed = False


def install() -> None:
    global _is_installed
    if not _is_installed:
        _is_installed = True
        for hooks in (process_group, ddp, functional, exits):
            hooks.install_all()
