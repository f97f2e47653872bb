"""`place`: the test runs three times, on one host, over ssh, and in a SLURM allocation; or where it says."""

from pathlib import Path

import pytest

from tests.cluster.sshd import Cluster

from . import places


@pytest.fixture(params=["local", "ssh", "slurm"])
def place(request: pytest.FixtureRequest, hosts: Cluster, tmp_path: Path) -> places.Place:
    if request.param == "local":
        return places.local(hosts, tmp_path)
    if request.param == "ssh":
        return places.ssh(hosts, tmp_path)
    return places.slurm(hosts, request.getfixturevalue("slurm"), tmp_path)
