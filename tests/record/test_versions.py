"""Recording works with every torch that rollcall allows, also with those that lack some of today's names."""

import subprocess
import sys

OLDER = """\
from torch.distributed import distributed_c10d
if hasattr(distributed_c10d, "GroupName"):
    del distributed_c10d.GroupName
from rollcall.record import recorder
recorder.prepare()
"""


def test_the_recorder_needs_no_group_name() -> None:
    """torch 2.9 has no GroupName."""
    ran = subprocess.run([sys.executable, "-c", OLDER], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
