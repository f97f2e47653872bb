"""Hosts that are reached by ssh: those of the tests, network namespaces of this machine with an sshd each."""

import contextlib
import sys
from collections.abc import Iterator

from contenders import REPOSITORY
from jobs import undisturbed

sys.path.insert(0, str(REPOSITORY))  # of the tests, nothing is installed
from tests.cluster.fixtures import CLUSTER_PROGRAMS, SLURM_PROGRAMS, settle
from tests.cluster.programs import why_not
from tests.cluster.slurm import Slurm
from tests.cluster.sshd import Cluster, SshHost

__all__ = ["Cluster", "Slurm", "SshHost", "opened", "settle", "why_no_slurm", "why_none"]


def why_none() -> str | None:
    """Why hosts cannot be started here, or None."""
    return why_not(CLUSTER_PROGRAMS)


def why_no_slurm() -> str | None:
    return why_not(SLURM_PROGRAMS)


@contextlib.contextmanager
def opened(count: int) -> Iterator[Cluster]:
    """Start hosts h1, h2 …; at the end of the block they and their processes are removed."""
    cluster = Cluster(count)
    try:
        yield cluster
    finally:
        with undisturbed():
            cluster.stop()
