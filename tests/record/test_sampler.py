"""Where a rank is while it is in no op."""

from rollcall.explain.loading.load import load
from tests.record.recorded import ops_of
from tests.rollcall_command import Runner


def test_a_rank_that_is_in_no_op_is_seen(runner: Runner) -> None:
    """On its line, once, from when to when; and whether it waits for its data."""
    body = "import queue, time\ndist.all_reduce(t)\ntime.sleep(0.5)\ntry:\n    queue.Queue().get(timeout=0.5)\n"
    ops_of(runner, body + "except queue.Empty:\n    pass\ndist.all_reduce(t)\n")
    run = load(runner.latest().resolve())
    samples = {str(op.site): op for op in run.ranks[0].events if op.op == "sample"}
    assert samples["script.py:7"].completed_ns - samples["script.py:7"].entered_ns > 0.2e9
    assert not samples["script.py:7"].waits_for_data
    assert samples["script.py:9"].waits_for_data
