"""`rollcall` on the hosts of the cluster."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.sshd import Cluster
from tests.rollcall_command import Runner

# Says who it is, and what the sum over all ranks is.
SUM = """\
import os, socket, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
names = ("LOCAL_RANK", "GROUP_RANK", "GLOO_SOCKET_IFNAME")
local, node, interface = (os.environ[name] for name in names)
print(dist.get_rank(), socket.gethostname(), local, node, int(total.item()), interface)
"""


@pytest.fixture
def rollcall(hosts: Cluster, tmp_path: Path) -> Iterator[Runner]:
    """A runner that reaches the hosts by ssh. That nothing stays there is checked by `hosts`."""
    runner = Runner(tmp_path)
    runner.env.update(hosts.env)
    yield runner
    left = runner.wait_until_gone()
    for process in left:
        process.kill()
    assert not left, f"left running: {left}"


def lines_of(out: str) -> list[str]:
    """What ranks printed, in their order, without the prefix."""
    return sorted(line.split(" │ ", 1)[1] for line in out.splitlines())
