"""The limit of open files, in a process of its own."""

import subprocess
import sys

import pytest

ALLOW = """\
import resource, sys
from rollcall.linux import open_files
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200))
print(open_files.allow(int(sys.argv[1])), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(("count", "holds"), [(50, 100), (150, 150), (900, 200)])
def test_the_limit_is_raised_as_far_as_it_may_be(count: int, holds: int) -> None:
    """It is never lowered, and the hard limit stays."""
    ran = subprocess.run([sys.executable, "-c", ALLOW, str(count)], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == [str(holds), str(holds), "200"]
