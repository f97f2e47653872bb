"""Memory that was freed is used again."""

import os
import subprocess
import sys

STEPS = """\
import resource
from rollcall.linux.malloc import keep_freed_memory

keep_freed_memory()
faults = []
for _ in range(30):
    b"1" * (16 << 20)  # 4,096 pages
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(faults[-1] - faults[19])
"""


def _count_faults(**variables: str) -> int:
    """How many pages the kernel provides for the last ten of thirty steps. The first steps fill the heap."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    ran = subprocess.run(
        [sys.executable, "-c", STEPS], env={**env, **variables}, capture_output=True, text=True, check=True, timeout=180
    )
    return int(ran.stdout)


def test_freed_memory_is_kept() -> None:
    """A step does not get its memory from the kernel."""
    assert _count_faults() < 1000


def test_malloc_settings_of_the_user_are_respected() -> None:
    """With glibc's own variable, blocks of 16 MiB come from the kernel every time."""
    assert _count_faults(MALLOC_MMAP_THRESHOLD_="1000000") > 10 * 4000
