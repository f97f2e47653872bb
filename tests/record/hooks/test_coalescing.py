"""Ops that a backend begins together, as nccl does. Without a GPU, torch's fake backend makes the same calls."""

from rollcall.explain.loading.load import load
from rollcall.record.ring_format import WAITED
from tests.record.recorded import run_recorded
from tests.rollcall_command import Runner

PROGRAM = """\
import torch, torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.testing._internal.distributed.fake_pg import FakeStore

dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
t = torch.ones(4)
for is_async in (True, False):
    with _coalescing_manager(device=torch.device("cpu"), async_ops=is_async) as batch:
        dist.isend(t, 1)
        dist.irecv(t, 1)
        dist.broadcast(t, 0)
    batch.wait()
dist.all_reduce(t)
"""


def test_the_ops_of_a_batch_are_waited_for_together(runner: Runner) -> None:
    """By the work of the batch, not by their own: under nccl they have none. What follows is on its own again."""
    run_recorded(runner, PROGRAM, ranks=1)
    (rank,) = load(runner.latest().resolve()).ranks.values()
    _, *batched, last = rank.ops
    assert [op.op for op in batched] == ["send", "recv", "broadcast"] * 2
    for batch in (batched[:3], batched[3:]):
        assert all(op.is_async and op.flags & WAITED and op.issued_ns and op.completed_ns for op in batch)
        assert batch[0].waited_ns >= batch[-1].issued_ns
    assert (last.op, last.is_async, last.completed_ns > 0) == ("all_reduce", False, True)
