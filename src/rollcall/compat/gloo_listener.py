"""Makes gloo's listening thread yield where it would spin: gloo_listener.cpp says how.

With as many ranks as cores, an all_reduce of a few bytes takes a quarter of the time, and a small DDP step two thirds.
Where it is not compiled, gloo is left as it is.
"""

import functools
from pathlib import Path

from rollcall import native
from rollcall.compat.patch import Patch

_SOURCE = Path(__file__).with_name("gloo_listener.cpp")
_LIBRARY = "/libtorch_cpu.so"  # contains gloo


def _works() -> str:
    if native.load(_SOURCE) is None:
        return "it is not compiled: run `python -m rollcall.native` (or ROLLCALL_NATIVE=0 is set)"
    return "" if install() else "torch does not call epoll_wait itself"


PATCH = Patch(
    name="gloo_listener",
    purpose="makes gloo's listening thread yield instead of spinning",
    lost_without="ranks that share cores wait up to four times as long for a small all_reduce",
    can_be_left_out=True,
    works=_works,
)


@functools.cache
def install() -> bool:
    """Patch the torch of this process, and of those forked from it. Returns whether that was possible."""
    library = None if PATCH.is_off() else native.load(_SOURCE)
    if library is None:
        return False
    import torch  # here: this module is imported where torch may not be; its library has no slot before it is loaded

    return torch.distributed.is_gloo_available() and bool(library.install(_LIBRARY))


def count() -> int:
    """How often a thread of this process has yielded."""
    library = native.load(_SOURCE)
    return 0 if library is None else int(library.count())
