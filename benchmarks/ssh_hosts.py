"""Hosts to start ranks on by ssh: those of the tests, which are network namespaces of this machine, each with sshd."""

import contextlib
import sys
from collections.abc import Iterator

from contenders import REPOSITORY
from jobs import undisturbed

sys.path.insert(0, str(REPOSITORY))  # of the tests, nothing is installed
from tests.cluster.fixtures import CLUSTER_PROGRAMS, settle
from tests.cluster.programs import why_not
from tests.cluster.sshd import Cluster, SshHost

__all__ = ["Cluster", "SshHost", "opened", "settle", "why_none"]


def why_none() -> str | None:
    """Why there can be no hosts here; None where there can be."""
    return why_not(CLUSTER_PROGRAMS)


@contextlib.contextmanager
def opened(count: int) -> Iterator[Cluster]:
    """So many hosts, h1 and up. At the end of the block nothing is left of them, nor of what ran there."""
    cluster = Cluster(count)
    try:
        yield cluster
    finally:
        with undisturbed():
            cluster.stop()
