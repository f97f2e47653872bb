"""The two methods that almost every op calls, ProcessGroup.allreduce and Work.wait: calls in C++ around their hooks."""

from types import BuiltinFunctionType

import torch.distributed as dist

from rollcall.record.cpp import library
from rollcall.record.hooks import patching, process_group, works

_METHODS = (
    (dist.ProcessGroup, "allreduce", library.make_all_reduce),
    (dist.Work, "wait", library.make_wait),
)


def install() -> None:
    """Puts them around the hooks, where nobody else has put something there since."""
    library.share(
        dist.ProcessGroup, dist.Work, process_group.batches, works.unwaited, works.newest, patching.report_error
    )
    for owner, name, make in _METHODS:
        where = f"{owner.__name__}.{name}"
        wrapper = patching.wrappers.get(where)
        original = getattr(wrapper, "__wrapped__", None)
        original = getattr(original, "__func__", original)  # some methods of torch are wrapped twice
        if isinstance(original, BuiltinFunctionType) and vars(owner).get(name) is wrapper:
            hook = patching.installed[where]
            setattr(owner, name, make(original, wrapper, hook.after, hook.failed))
