"""`hosts` for a test with hosts, `slurm` beside it for one with SLURM. Both start once per pytest process."""

import contextlib
from collections.abc import Iterator

import psutil
import pytest

from .programs import why_not
from .slurm import KILL_WAIT_S, Slurm
from .sshd import Cluster

CLUSTER_PROGRAMS = [
    "ip",
    "bridge",
    "mount",
    "umount",
    "nsenter",
    "unshare",
    "setpriv",
    "hostname",
    "ssh",
    "sshd",
    "ssh-keygen",
]
SLURM_PROGRAMS = ["munged", "slurmctld", "slurmd", "srun", "salloc", "sbatch", "squeue", "scancel", "scontrol", "sinfo"]

GRACE_S = 5
JOB_GRACE_S = KILL_WAIT_S + GRACE_S  # a job that was cancelled while it started may miss its SIGTERM


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Four hosts with sshd, for the whole session; tests take `hosts`, which cleans up after them."""
    skip_without(CLUSTER_PROGRAMS)
    with Cluster() as started:
        yield started


@pytest.fixture(scope="session")
def slurm(cluster: Cluster) -> Iterator[Slurm]:
    """SLURM over h1, h2 and h3."""
    skip_without(SLURM_PROGRAMS)
    with Slurm(cluster) as started:
        yield started


@pytest.fixture
def hosts(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster as new; afterwards nothing may run on any host."""
    yield cluster
    left = settle(cluster)
    assert not left, f"left running: {left}"


def settle(cluster: Cluster, grace_s: float = GRACE_S, job_grace_s: float = JOB_GRACE_S) -> list[str]:
    """Undo what a test did to the hosts and end what it left; what that was."""
    cluster.restore()
    jobs = cluster.slurm.wait_until_idle(job_grace_s) if cluster.slurm else []
    processes = cluster.wait_until_idle(grace_s)
    left = [f"SLURM job {job}" for job in jobs] + [describe(process) for process in processes]
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    if cluster.slurm:
        cluster.slurm.restore()
    return left


def describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid}: {' '.join(process.cmdline())}"
    except psutil.Error:
        return f"{process.pid}, which ended just now"


def skip_without(programs: list[str]) -> None:
    if reason := why_not(programs):
        pytest.skip(reason)
