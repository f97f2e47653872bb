"""`rollcall doctor --deep` on healthy ssh hosts, again and again; then with one whose network is slow."""

import argparse
from dataclasses import asdict, dataclass

from contenders import HERE
from jobs import Jobs
from results import Goal, Result, median_or_none, progress, seconds, table
from ssh_hosts import Cluster, opened, why_none

HOSTS = 4
MOST_S = 30.0  # for a host
SLOW = ("tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "20mbit", "burst", "32kb", "latency", "50ms")
WELL_AGAIN = ("tc", "qdisc", "del", "dev", "eth0", "root")
WELL, SICK = 0, 1  # exit codes of doctor


@dataclass(frozen=True)
class Check:
    code: int | None
    seconds: float
    said: str


def measure(jobs: Jobs, options: argparse.Namespace) -> Result:
    if reason := why_none():
        progress(f"left out: {reason}")
        return Result([], [Goal("preflight", f"{options.preflights} without an alarm", "left out", None)])
    with opened(HOSTS + 1) as cluster:  # the last one is the login node, where the command is given
        clean = [_check(jobs, cluster, options.timeout_s) for _ in range(options.preflights)]
        slow_host = cluster.hosts[HOSTS - 2]
        slow_host.run(list(SLOW))
        slow = _check(jobs, cluster, options.timeout_s)
        slow_host.run(list(WELL_AGAIN))
    alarms = [check for check in clean if check.code != WELL]
    for check in alarms:
        progress(f"an alarm on healthy hosts:\n{check.said}")
    took_s = [check.seconds for check in clean]
    made = table(f"rollcall doctor --deep, {HOSTS} hosts of this machine", "", "median", "longest", "alarms")
    made.add_row("healthy", seconds(median_or_none(took_s)), seconds(max(took_s)), f"{len(alarms)} of {len(clean)}")
    named = slow.code == SICK and f"{slow_host.name}: what it sends" in slow.said
    made.add_row(f"{slow_host.name} has 20 Mbit/s", seconds(slow.seconds), "", "named" if named else "NOT NAMED")
    goals = [
        Goal("healthy hosts: alarms", "0", f"{len(alarms)} of {len(clean)}", not alarms),
        Goal("… for a host", f"≤ {MOST_S:g} s", seconds(max(took_s) / HOSTS), max(took_s) <= MOST_S * HOSTS),
        Goal("one slow host of four", "named", "named" if named else slow.said, named),
    ]
    return Result([made], goals, {"clean": [asdict(check) for check in clean], "slow": asdict(slow)})


def _check(jobs: Jobs, cluster: Cluster, timeout_s: float) -> Check:
    names = ",".join(f"{host.name}:1" for host in cluster.hosts[:HOSTS])
    words = [*cluster.hosts[-1].enter, str(HERE / "rollcall"), "doctor", "--hosts", names, "--deep"]
    with jobs.start(words, **cluster.env) as job:
        code = job.wait(timeout_s)
        said = (job.folder / "output.txt").read_text()
        check = Check(code, (job.ended_ns - job.started_ns) / 1e9, said)
    progress(f"{seconds(check.seconds)}, exit code {code}")
    return check
