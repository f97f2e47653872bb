"""Runs a program on recorded ranks, and reads what is in their rings."""

from rollcall.explain.load import Op, load
from tests.rollcall_command import Runner

HEAD = """\
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
t = torch.ones(4)
"""


def ops_of(runner: Runner, body: str, *options: object, ranks: int = 2) -> dict[int, tuple[Op, ...]]:
    """The ops of each rank. The body begins on line 5."""
    runner.script(HEAD + body)
    ran = runner("run", "-n", ranks, *options, "script.py")
    assert ran.code == 0, ran.err
    return {rank.number: rank.ops for rank in load(runner.latest().resolve()).ranks.values()}
