"""The calls in C++ around the hooks of all_reduce and wait do what the hooks do."""

import pytest

from rollcall.explain.loading.load import load
from tests.record.conftest import is_built
from tests.record.recorded import HEAD, ops_of, run_recorded
from tests.rollcall_command import Runner

PROFILED = """
import sys
called = []
def profile(frame, event, _):
    if event == "call" and "/rollcall/record/" in frame.f_code.co_filename:
        called.append(frame.f_code.co_name)
for turn in range(4):  # on one line: its name is known in the last turn
    sys.setprofile(profile if turn == 3 else None)
    dist.all_reduce(t)
sys.setprofile(None)
print(called)
"""
REFUSED = """
import traceback
dist.all_reduce(t)
try:
    dist.all_reduce(t, dist.ReduceOp.BAND)
except Exception as error:
    print(type(error).__name__, [frame.name for frame in traceback.extract_tb(error.__traceback__)])
dist.all_reduce(t)
"""
# Handles that nobody waits for at once, one of which is waited for twice, and one with a limit.
HANDLES = """
from datetime import timedelta
world = dist.group.WORLD
works = [world.allreduce([t], options) for options in (dist.AllreduceOptions(), dist.AllreduceOptions())]
works.append(dist.all_reduce(t, async_op=True))
print([work.wait() for work in works], works[0].wait(), world.allreduce([t]).wait(timedelta(seconds=60)), t.tolist())
"""


@is_built
@pytest.mark.parametrize("language", ["cpp"], indirect=True)
def test_a_usual_op_runs_no_python_of_the_recorder(runner: Runner) -> None:
    assert [rank.out for rank in run_recorded(runner, HEAD + PROFILED)] == ["[]\n", "[]\n"]


def test_an_op_that_raises_has_failed(runner: Runner) -> None:
    """The program gets the error that it gets without recording, and a traceback without a frame of ours."""
    plain, recorded = (run_recorded(runner, HEAD + REFUSED, is_recorded=each) for each in (False, True))
    assert [rank.out for rank in recorded] == [rank.out for rank in plain]
    for rank in load(runner.latest().resolve()).ranks.values():
        assert [op.is_failed for op in rank.ops if op.op == "all_reduce"] == [False, True, False]


def test_each_handle_completes_its_own_op(runner: Runner) -> None:
    for ops in ops_of(runner, HANDLES).values():
        made = [op for op in ops if op.op == "all_reduce"]
        assert len(made) == 4
        assert all(op.completed_ns for op in made)
