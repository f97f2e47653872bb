"""What a user sees of an error: the program's frames and torch's."""

from tests.rollcall_command import Runner

PROGRAM = """\
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
class Model(torch.nn.Linear):
    def forward(self, x):
        raise ValueError("no such input")
dist.init_process_group("gloo")
model = DistributedDataParallel(Model(2, 2))
dist.barrier()
if dist.get_rank() == 1:
    model(torch.ones(2))
"""


def test_a_traceback_through_a_recorded_call_has_no_frame_of_the_recorder(rollcall: Runner) -> None:
    """It is the same as without recording."""
    rollcall.script(PROGRAM)
    shown = []
    for options in ((), ("--no-record",)):
        ran = rollcall("run", "-n", 2, *options, "script.py")
        assert ran.code == 1, ran.err
        shown.append([line for line in ran.err.splitlines() if "File " in line or "Error" in line])
    recorded, plain = shown
    assert recorded == plain
    assert any("script.py" in line and "in forward" in line for line in recorded)
