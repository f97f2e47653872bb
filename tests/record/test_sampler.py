"""Where a rank is while it is in no op."""

import _thread
import sysconfig

import pytest

from rollcall.explain.loading.load import load
from rollcall.record import sampler
from rollcall.record.sites import is_made_elsewhere, waits_for_data
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


def test_who_puts_something_into_a_queue_does_not_wait_for_data() -> None:
    """It waits for room; who takes something from a queue waits for data, also through a lock of the library."""
    library = sysconfig.get_path("stdlib")
    lock, script = (f"{library}/threading.py", "wait"), ("/home/me/train.py", "main")
    assert not waits_for_data([lock, (f"{library}/queue.py", "put"), script])
    assert waits_for_data([lock, (f"{library}/queue.py", "get"), script])
    assert not waits_for_data([lock, script, (f"{library}/queue.py", "get")])


def test_data_that_a_worker_makes_is_told_from_data_that_the_rank_makes_itself() -> None:
    """A loader takes it from its workers' queue, or calls the dataset."""
    library, torch_data = sysconfig.get_path("stdlib"), f"{sysconfig.get_path('purelib')}/torch/utils/data"
    loader, script = (f"{torch_data}/dataloader.py", "__next__"), ("/home/me/train.py", "main")
    from_worker = [
        (f"{library}/selectors.py", "select"),
        (f"{library}/multiprocessing/queues.py", "get"),
        loader,
        script,
    ]
    by_itself = [("/home/me/dataset.py", "__getitem__"), loader, script]
    assert waits_for_data(from_worker)
    assert waits_for_data(by_itself)
    assert [is_made_elsewhere(each) for each in (from_worker, by_itself)] == [True, False]


def test_what_is_thrown_at_the_thread_that_starts_the_sampler_reaches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11 gives a new thread the id of the one that starts it, until it runs: it may get that one's errors."""
    thrown: list[tuple[str, int]] = []
    monkeypatch.setattr(sampler, "_throw", lambda error, thread: thrown.append((str(error), thread)))
    monkeypatch.setattr(sampler, "_name_thread", lambda: None)
    begun = sampler.Sampler.__new__(sampler.Sampler)
    begun._is_on, begun._begun, begun._ended = False, _thread.allocate_lock(), _thread.allocate_lock()
    begun._begun.acquire()
    begun._ended.acquire()
    run = begun._run(42)
    next(run)
    with pytest.raises(StopIteration):
        run.throw(KeyboardInterrupt("late"))
    assert thrown == [("late", 42)]
    assert not begun._ended.locked()
