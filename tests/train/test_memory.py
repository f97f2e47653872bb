"""What a step has freed is there for the next one."""

import os
import subprocess
import sys

STEPS = """\
import resource, torch
from rollcall.train.memory import keep_freed

keep_freed()
faults = []
for _ in range(30):
    torch.ones(4 << 20)  # 16 MiB: 4,096 pages
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(faults[-1] - faults[19])
"""


def _faults(**variables: str) -> int:
    """How many pages the kernel had to hand out for the last ten of thirty steps: the first ones fill the heap."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    ran = subprocess.run(
        [sys.executable, "-c", STEPS], env={**env, **variables}, capture_output=True, text=True, check=True, timeout=60
    )
    return int(ran.stdout)


def test_freed_memory_is_kept() -> None:
    """The kernel has nothing to do with a step's memory."""
    assert _faults() < 1000


def test_who_has_tuned_malloc_is_left_alone() -> None:
    """With glibc's own variable, blocks of 16 MiB come from the kernel every time."""
    assert _faults(MALLOC_MMAP_THRESHOLD_="1000000") > 10 * 4000
