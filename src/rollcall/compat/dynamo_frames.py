"""Keeps torch.compile from tracing the recorder. Where a compiled function calls code that cannot be compiled, such as
a backward, torch tries to compile whatever Python runs in there: hooks, too, and warns that it cannot."""

import functools
from types import CodeType
from typing import Any

from rollcall.compat.patch import Patch, exists

_EVAL_FRAME = "torch._C._dynamo.eval_frame"
_FRAMES = (
    f"{_EVAL_FRAME}:set_code_exec_strategy",
    f"{_EVAL_FRAME}:_FrameExecStrategy",
    f"{_EVAL_FRAME}:_FrameAction.SKIP",
    f"{_EVAL_FRAME}:_FrameAction.DEFAULT",
)
PATCH = Patch(
    name="dynamo_frames",
    purpose="keeps torch.compile from tracing the recorder",
    lost_without="torch.compile traces hooks, and warns of those that it cannot trace",
    uses=(*_FRAMES, "torch._dynamo.decorators:skip<_torchdynamo_disable>"),
    can_be_left_out=True,
)


@functools.cache
def _is_possible() -> bool:
    return not PATCH.is_off() and all(map(exists, _FRAMES))  # the other one would import the compiler


def leave_out(function: Any, *, with_callees: bool) -> None:
    """torch.compile runs this function as it is; also what it calls, or only itself."""
    code = getattr(function, "__code__", None)
    if isinstance(code, CodeType) and _is_possible():
        from torch._C._dynamo import eval_frame  # here: this module is imported where torch may not be

        action = eval_frame._FrameAction
        strategy = eval_frame._FrameExecStrategy(action.SKIP, action.SKIP if with_callees else action.DEFAULT)
        eval_frame.set_code_exec_strategy(code, strategy)


def break_at(function: Any) -> None:
    """torch.compile does not trace a call of this function, but leaves the compiled code for it, as for one of C++."""
    if not PATCH.is_off():
        function._torchdynamo_disable = True  # what torch.compiler.disable sets, without a wrapper of its own
