"""SLURM over the first hosts of a cluster; its commands run on the machine itself."""

import secrets
import socket
import subprocess
import time
from typing import Any

from .programs import SEARCH_PATH, Daemon, find
from .sshd import Cluster, accepts

# The controller listens on all addresses of the machine, where others may run one: each gets a port of its own.
FIRST_CONTROLLER_PORT = 17000

KILL_WAIT_S = 10  # from a cancelled job's SIGTERM to its SIGKILL

# cred_expire is also how long a requeued job waits before it starts again: 120 s unless told.
# linuxproc and no cgroups: the machine may have cgroups of either version, or be a container without.
SLURM_CONF = """\
ClusterName=rollcall
SlurmctldHost={controller}({address})
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=10
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
MailProg={true}
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
JobRequeue=1
MinJobAge=86400
KillWait={kill_wait_s}
SlurmdTimeout=20
ReturnToService=2
NodeName=h[1-{n_hosts}] NodeAddr={addresses} CPUs=8 RealMemory=4000
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """`with Slurm(cluster) as slurm:` and then `srun` with `slurm.env`."""

    def __init__(self, cluster: Cluster, n_hosts: int = 3) -> None:
        self.cluster = cluster
        self.hosts = cluster.hosts[:n_hosts]
        self.folder = cluster.folder / "slurm"
        self.conf = self.folder / "slurm.conf"
        self.port = FIRST_CONTROLLER_PORT + cluster.claim.number
        self._daemons: list[Daemon] = []
        try:
            self._write_files()
            self._start_munge()
            self._start_controller()
            self._start_hosts()
        except BaseException:
            self.stop()
            raise
        cluster.slurm = self

    @property
    def env(self) -> dict[str, str]:
        """For the environment of srun, sbatch and their like."""
        return {"SLURM_CONF": str(self.conf)}

    def run(self, words: list[str], **options: Any) -> "subprocess.CompletedProcess[str]":
        """A command of SLURM; by default it captures text and raises on failure."""
        env = {"PATH": SEARCH_PATH, **self.env}
        defaults = {"capture_output": True, "text": True, "check": True, "stdin": subprocess.DEVNULL, "env": env}
        return subprocess.run(words, **{**defaults, **options})

    def jobs(self) -> list[str]:
        """The numbers of the jobs that wait, run or end."""
        return self.run(["squeue", "--noheader", "--format=%A"]).stdout.split()

    def wait_until_idle(self, timeout_s: float) -> list[str]:
        """The jobs that are left after so long."""
        deadline = time.monotonic() + timeout_s
        while (left := self.jobs()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left

    def restore(self) -> None:
        """End all jobs, and bring back nodes that a test had lost."""
        if left := self.jobs():
            self.run(["scancel", *left], check=False)
        deadline = time.monotonic() + 20
        while busy := [name for name, state in self.nodes().items() if state != "idle"]:
            if time.monotonic() > deadline:
                raise RuntimeError(f"not idle again after 20 s: {self.nodes()}")
            # Refused while a node is still completing.
            self.run(["scontrol", "update", f"NodeName={','.join(busy)}", "State=RESUME"], check=False)
            time.sleep(0.1)

    def nodes(self) -> dict[str, str]:
        """The state of each node, like "idle" or "down*"."""
        lines = self.run(["sinfo", "--noheader", "--Node", "--format=%N %t"]).stdout.splitlines()
        return dict(line.split() for line in lines)

    def stop(self) -> None:
        self.cluster.slurm = None
        for daemon in reversed(self._daemons):
            daemon.stop()

    def _write_files(self) -> None:
        for folder in (self.folder, self.folder / "state"):
            folder.mkdir()
        key = self.folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(128))
        text = SLURM_CONF.format(
            controller=socket.gethostname().partition(".")[0],
            address=self.cluster.address,
            port=self.port,
            folder=self.folder,
            true=find("true"),
            kill_wait_s=KILL_WAIT_S,
            n_hosts=len(self.hosts),
            addresses=self.cluster.claim.address(0).removesuffix("0") + f"[1-{len(self.hosts)}]",
        )
        self.conf.write_text(text)

    def _start(self, name: str, words: list[str]) -> Daemon:
        daemon = Daemon(words, self.folder / f"{name}.log")
        self._daemons.append(daemon)
        return daemon

    def _start_munge(self) -> None:
        """A munged of our own, so that the machine's may run, or not."""
        where = {"socket": "socket", "key-file": "key", "pid-file": "pid", "seed-file": "seed"}
        options = [f"--{option}={self.folder}/munge.{suffix}" for option, suffix in where.items()]
        munged = self._start("munged", [find("munged"), "--foreground", *options])
        munged.wait_until((self.folder / "munge.socket").exists)

    def _start_controller(self) -> None:
        controller = self._start("slurmctld", [find("slurmctld"), "-D", "-f", str(self.conf)])
        controller.wait_until(lambda: accepts(self.cluster.address, self.port))

    def _start_hosts(self) -> None:
        for host in self.hosts:
            words = [find("slurmd"), "-D", "-f", str(self.conf), "-N", host.name]
            slurmd = self._start(f"slurmd-{host.name}", [*host.enter, *words])
        slurmd.wait_until(lambda: set(self.nodes().values()) == {"idle"})

    def __enter__(self) -> "Slurm":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
