"""The only folder that touches torch's internals. All hooks are put up once; whoever listens is told.

listener    who is told, and what
arguments   what the methods of ProcessGroup are called with
replacing   putting something in the place of a function
groups      every op that Python asks for
ddp         what DDP's reducer starts in C++
functional  functional collectives: DTensor, compiled programs
process     signals that a rank sends
"""

from rollcall.record.hooks import ddp, exits, functional, process_group
from rollcall.record.hooks.sink import listen

__all__ = ["listen", "put_up"]
_is_up = False


def put_up() -> None:
    global _is_up
    if not _is_up:
        _is_up = True
        for hooks in (process_group, ddp, functional, exits):
            hooks.put_up()
