"""Hosts that are lost, do not come, and come back."""

from pathlib import Path

from tests.cluster.sshd import Cluster
from tests.faults.places import Run, ssh
from tests.rollcall_command import Runner, until
from tests.said import said

# Attempt 0 goes on until somebody ends it; the later ones end by themselves.
PATIENT = """\
import os, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
print("attempt", attempt, "of", dist.get_world_size(), "hosts", os.environ["GROUP_WORLD_SIZE"], flush=True)
while attempt == "0":
    dist.all_reduce(torch.ones(1))
    time.sleep(0.02)
dist.barrier()
"""


def start(hosts: Cluster, folder: Path, *options: object) -> Run:
    return ssh(hosts, folder).start(*options, program=PATIENT)


def test_the_remaining_hosts_go_on(hosts: Cluster, tmp_path: Path) -> None:
    """When a host is cut off, those that are left begin the next attempt, and the lost one is named."""
    place = ssh(hosts, tmp_path)
    run = place.start("--min-hosts", 1, program=PATIENT)
    hosts["h2"].cut()
    assert run.result() == 0, run.err
    assert "h2 was not heard of for 10 s" in run.err
    assert said(run.out)["attempt 1 of 2 hosts 1"] == [0, 1]
    assert place.left() == []


def test_nnodes_says_the_same_as_min_hosts(hosts: Cluster, tmp_path: Path) -> None:
    """--nnodes 1:2 with two hosts: one is enough, also where the other never came."""
    hosts["h2"].stop_sshd()
    place = ssh(hosts, tmp_path)
    run = place.start("--nnodes", "1:2", begun=False, program=PATIENT.replace('attempt == "0"', "False"))
    assert run.result() == 0, run.err
    assert "continuing without h2" in run.err
    assert "attempt 0 of 2 hosts 1" in run.out


def test_the_master_may_be_the_one_that_is_lost(hosts: Cluster, tmp_path: Path) -> None:
    """Its agent is killed: the next host holds the store of the next attempt, or a new agent on the same host."""
    place = ssh(hosts, tmp_path)
    run = place.start("--min-hosts", 1, program=PATIENT)
    run.agent_of(0).kill()
    assert run.result() == 0, run.err
    assert "h1 lost its agent, which was killed by SIGKILL" in run.err
    assert "attempt 1 of" in run.out


def test_a_killed_agent_costs_a_restart_where_all_hosts_are_needed(hosts: Cluster, tmp_path: Path) -> None:
    """With --max-restarts the host gets a new agent, and the next attempt has all ranks."""
    place = ssh(hosts, tmp_path)
    run = place.start("--max-restarts", 1, program=PATIENT)
    run.agent_of(3).kill()
    assert run.result() == 0, run.err
    assert said(run.out)["attempt 1 of 4 hosts 2"] == [0, 1, 2, 3]


def test_a_host_that_comes_back_joins_the_next_attempt(rollcall: Runner, hosts: Cluster, tmp_path: Path) -> None:
    """Lost in attempt 0, away in attempt 1, back in attempt 2 with all ranks."""
    place = ssh(hosts, tmp_path)
    ready = tmp_path / "ready"
    program = PATIENT.replace(
        "dist.barrier()",
        f"while attempt == '1' and not os.path.exists({str(ready)!r}):\n"
        "    time.sleep(0.05)\n"
        "if attempt == '1':\n"
        "    sys.exit(3)\n"
        "dist.barrier()",
    )
    run = place.start("--min-hosts", 1, "--max-restarts", 1, program=program)
    hosts["h2"].stop_sshd()
    run.agent_of(3).kill()
    assert until(lambda: run.has_begun(2, attempt=1)), run.process.communicate()
    hosts["h2"].start_sshd()
    # It is asked again every 10 s, and then imports torch.
    assert until(lambda: any("rollcall" in " ".join(p.cmdline()) for p in hosts["h2"].processes()))
    until(lambda: False, 3)
    ready.touch()
    assert run.result() == 0, run.err
    assert "h2 is back, and joins the next attempt" in run.err
    assert said(run.out)["attempt 2 of 4 hosts 2"] == [0, 1, 2, 3]
    assert [len(attempt["pids"]) for attempt in run.facts["attempts"]] == [4, 2, 4]
