"""Correct programs as people write them: nothing is found, and no handle counts as forgotten."""

from pathlib import Path

from rollcall.explain.verdict import explain
from tests.blame import blamed
from tests.rollcall_command import Runner

IDIOMS = """\
import time
import torch, torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()

# Objects, as in torch's documentation.
everything = [None] * size if rank == 0 else None
dist.gather_object({"rank": rank}, everything, dst=0)
mine = [None]
dist.scatter_object_list(mine, ["a", "b"] if rank == 0 else None, src=0)
dist.scatter_object_list(mine, ["a", "b"] if rank == 0 else [None, None], src=0)

# Handles.
work = dist.all_reduce(torch.ones(4), async_op=True)
while not work.is_completed():
    time.sleep(0.001)
dist.all_reduce(torch.ones(3), async_op=True).get_future().wait()
print(dist.all_reduce(torch.ones(3), async_op=True).get_future().then(lambda f: f.value()[0] * 2).wait())
works = [dist.broadcast(torch.ones(2), src=0, async_op=True) for _ in range(5)]
for work in works:
    work.wait()

# DDP with uneven inputs, and functional collectives beside it.
model = DistributedDataParallel(torch.nn.Linear(3, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with model.join():
    for _ in range(3 + 2 * rank):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).sum().backward()
        optimizer.step()
for _ in range(3):
    loss = model(torch.randn(4, 3)).sum()
    print(funcol.all_reduce(loss.detach(), "sum", dist.group.WORLD).item())
    loss.backward()

# Another model in each group.
alone = [dist.new_group([other]) for other in range(size)][rank]
critic = DistributedDataParallel(torch.nn.Linear(2, 2 + rank), process_group=alone)
critic(torch.ones(1, 2)).sum().backward()
dist.barrier()
dist.destroy_process_group()
"""


def test_idioms_of_correct_programs_are_not_blamed(tmp_path: Path) -> None:
    """gather_object, polled handles, futures, handles in a list, join(), functional collectives beside DDP,
    models that differ between groups."""
    runner = Runner(tmp_path)
    runner.script(IDIOMS)
    ran = runner("run", "-n", 2, "script.py")
    assert ran.code == 0, ran.err
    found = explain(runner.latest().resolve())
    assert (found.outcome, blamed(found)) == ("ok", [])
