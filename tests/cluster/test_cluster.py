"""The hosts themselves: what other tests rely on."""

import errno
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from .claim import links, take
from .fixtures import settle
from .slurm import Slurm
from .sshd import Cluster, SshHost

ROOT = Path(__file__).parents[2]

ECHO = """
import socket, sys
with socket.create_server((sys.argv[1], 7777)) as server:
    print("listening", flush=True)
    while True:
        connection, _ = server.accept()
        while data := connection.recv(100):
            connection.sendall(data)
"""


def ssh(hosts: Cluster, name: str, *words: str) -> "subprocess.CompletedProcess[str]":
    words = (*hosts.ssh, "-o", "BatchMode=yes", name, *words)
    return subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def until(condition: Callable[[], object], timeout_s: float = 60) -> bool:
    deadline = time.monotonic() + timeout_s
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return bool(found)


@contextmanager
def started(words: list[str], env: dict[str, str] | None = None) -> Iterator["subprocess.Popen[str]"]:
    """A process that is killed at the end, also where an assertion fails before it."""
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=env, cwd=ROOT) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def echo_on(host: SshHost) -> Iterator[None]:
    with started([*host.enter, sys.executable, "-c", ECHO, host.address]) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "listening\n"
        yield


def runs_only(host: SshHost, program: str) -> bool:
    """Whether one process is on the host, with this name."""
    try:
        return [process.name() for process in host.processes()] == [program]
    except psutil.NoSuchProcess:
        return False


def connect(host: SshHost, timeout_s: float) -> socket.socket:
    return socket.create_connection((host.address, 7777), timeout=timeout_s)


# Network


def test_hosts_have_their_own_name_and_address(hosts: Cluster) -> None:
    """hostname and hostname -I tell hosts apart, and each finds the others by name."""
    for host in hosts.hosts:
        assert host.run(["hostname"]).stdout == f"{host.name}\n"
        assert host.run(["hostname", "-I"]).stdout.split()[0] == host.address
        assert host.run(["getent", "ahostsv4", "h4"]).stdout.startswith(hosts["h4"].address)
    assert socket.gethostname() != "h1"


def test_commands_keep_their_folder_pid_and_exit_code(hosts: Cluster, tmp_path: Path) -> None:
    """What is entered is the process itself, in the folder that it was started in."""
    words = [*hosts["h2"].enter, "sh", "-c", "echo $$; pwd; exit 7"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    out, _ = process.communicate()
    assert out.split() == [str(process.pid), str(tmp_path)]
    assert process.returncode == 7


def test_hosts_reach_each_other(hosts: Cluster) -> None:
    """From one host to the other by name, and from the machine."""
    client = "import socket; s = socket.create_connection(('h1', 7777), 5); s.sendall(b'hi'); print(s.recv(9))"
    with echo_on(hosts["h1"]):
        assert hosts["h3"].run([sys.executable, "-c", client]).stdout == "b'hi'\n"
        connect(hosts["h1"], timeout_s=30).close()


def test_processes_are_those_of_the_host(hosts: Cluster) -> None:
    """A command over ssh is found on its host only, and sshd's own processes are not counted."""
    with started([*hosts.ssh, "h2", "exec sleep 1000"]) as client:
        assert until(lambda: runs_only(hosts["h2"], "sleep"))
        assert hosts["h1"].processes() == []
        (left,) = hosts["h2"].wait_until_idle(0.2)
        left.kill()
        client.wait(timeout=180)
    assert hosts["h2"].wait_until_idle(5) == []


def test_private_folder_is_not_shared(hosts: Cluster) -> None:
    """A file there is seen by its host only, and gone after the test."""
    hosts["h1"].run(["touch", str(hosts.private / "mine")])
    assert hosts["h1"].seen(hosts.private / "mine").exists()
    assert not hosts["h2"].seen(hosts.private / "mine").exists()
    assert not (hosts.private / "mine").exists()
    assert settle(hosts) == []
    assert not hosts["h1"].seen(hosts.private / "mine").exists()


def test_small_disk_runs_full(hosts: Cluster) -> None:
    """On a host as on the machine, and each has its own."""
    big = bytes(2 << 20)
    for folder in (hosts.small_disk, hosts["h1"].seen(hosts.small_disk)):
        with pytest.raises(OSError, match="No space left") as full:
            (folder / "big").write_bytes(big)
        assert full.value.errno == errno.ENOSPC
    hosts["h2"].run(["sh", "-c", f"echo fits > {hosts.small_disk}/little"])
    assert settle(hosts) == []
    assert os.listdir(hosts.small_disk) == os.listdir(hosts["h1"].seen(hosts.small_disk)) == []


def test_overlay_changes_a_file_on_one_host(hosts: Cluster, tmp_path: Path) -> None:
    """Other content for one host, in layers, and the old one back."""
    path = tmp_path / "code.py"
    path.write_text("ours")
    hosts["h2"].overlay(path, "theirs")
    hosts["h2"].overlay(path, "theirs again")
    assert hosts["h2"].run(["cat", str(path)]).stdout == "theirs again"
    assert hosts["h1"].run(["cat", str(path)]).stdout == "ours"
    assert path.read_text() == "ours"
    hosts["h2"].remove_overlays()
    assert hosts["h2"].run(["cat", str(path)]).stdout == "ours"


def test_cut_is_silent_and_heals(hosts: Cluster) -> None:
    """No error reaches either side, not even for a new connection, and an open one goes on afterwards."""
    host = hosts["h1"]
    with echo_on(host), connect(host, timeout_s=1) as open_one:
        open_one.sendall(b"before")
        assert open_one.recv(9) == b"before"
        host.cut()
        open_one.sendall(b"during")
        with pytest.raises(TimeoutError):
            open_one.recv(9)
        # Longer than ARP takes to give up, which would say "no route to host".
        with pytest.raises(TimeoutError):
            connect(host, timeout_s=4)
        host.heal()
        open_one.settimeout(20)
        assert open_one.recv(9) == b"during"
        connect(host, timeout_s=30).close()


def test_cut_separates_hosts_too(hosts: Cluster) -> None:
    """A host that is cut off reaches no other host, and the others reach each other."""
    client = "import socket; socket.create_connection(('h1', 7777), 1)"
    hosts["h2"].cut()
    with echo_on(hosts["h1"]):
        cut_off = hosts["h2"].run([sys.executable, "-c", client], check=False)
        assert "TimeoutError" in cut_off.stderr
        hosts["h3"].run([sys.executable, "-c", client])


def test_blocked_port_is_silent(hosts: Cluster) -> None:
    """As behind a firewall: the one port answers nothing, the others do."""
    host = hosts["h1"]
    with echo_on(host):
        host.block_port(7777)
        host.block_port("8000-8100")
        with pytest.raises(TimeoutError):
            connect(host, timeout_s=0.5)
        assert ssh(hosts, "h1", "hostname").stdout == "h1\n"
        host.unblock_ports()
        connect(host, timeout_s=30).close()


# sshd


def test_ssh_answers(hosts: Cluster) -> None:
    """Every host, by its name and by its address."""
    for host in hosts.hosts:
        assert ssh(hosts, host.name, "hostname").stdout == f"{host.name}\n"
    answer = ssh(hosts, hosts["h3"].address, "hostname")
    assert (answer.stdout, answer.stderr) == ("h3\n", "")


def test_ssh_to_a_stopped_sshd_is_refused(hosts: Cluster) -> None:
    """No sshd, no answer; and back again."""
    hosts["h2"].stop_sshd()
    refused = ssh(hosts, "h2", "hostname")
    assert refused.returncode == 255
    assert "Connection refused" in refused.stderr
    hosts["h2"].start_sshd()
    assert ssh(hosts, "h2", "hostname").stdout == "h2\n"


def test_a_locked_host_rejects_the_key(hosts: Cluster) -> None:
    """It says so; and back again."""
    hosts["h2"].lock()
    rejected = ssh(hosts, "h2", "hostname")
    assert rejected.returncode == 255
    assert "Permission denied" in rejected.stderr
    hosts["h2"].unlock()
    assert ssh(hosts, "h2", "hostname").stdout == "h2\n"


# SLURM


def test_salloc_reaches_three_hosts(hosts: Cluster, slurm: Slurm) -> None:
    """One srun in an allocation answers from h1, h2 and h3."""
    answer = slurm.run(["salloc", "-N3", "srun", "hostname"])
    assert sorted(answer.stdout.split()) == ["h1", "h2", "h3"]


def test_steps_are_found_on_their_host(hosts: Cluster, slurm: Slurm) -> None:
    """What srun starts is there, and slurmstepd is not counted; scancel ends it."""
    with started(["srun", "-N3", "sleep", "1000"], env={**os.environ, **slurm.env}) as srun:
        assert until(lambda: all(runs_only(host, "sleep") for host in slurm.hosts))
        assert hosts["h4"].processes() == []
        slurm.run(["scancel", *slurm.jobs()])
        srun.communicate(timeout=180)
    assert hosts.wait_until_idle(5) == []
    assert slurm.wait_until_idle(5) == []


def test_a_requeued_job_starts_again(hosts: Cluster, slurm: Slurm, tmp_path: Path) -> None:
    """A batch job runs, and after a requeue it runs with SLURM_RESTART_COUNT=1."""
    log = tmp_path / "log"
    script = f'#!/bin/sh\necho "$(hostname) ${{SLURM_RESTART_COUNT:-0}}" >> {log}\nexec sleep 1000\n'
    submitted = slurm.run(["sbatch", "--parsable", "-N2", f"--output={tmp_path}/out"], input=script, stdin=None)
    job = submitted.stdout.strip()
    assert until(log.exists)
    slurm.run(["scontrol", "requeue", job])
    assert until(lambda: log.read_text().count("\n") == 2)
    assert log.read_text().split() == ["h1", "0", "h1", "1"]
    slurm.run(["scancel", job])
    assert slurm.wait_until_idle(10) == []


def test_slurm_is_cleared_between_tests(hosts: Cluster, slurm: Slurm) -> None:
    """A job that a test leaves is named and ended, and the nodes are idle again."""
    slurm.run(["sbatch", "-N3", "--output=/dev/null", "--wrap", "sleep 1000"])
    assert until(hosts["h1"].processes)
    left = settle(hosts, grace_s=0.1, job_grace_s=0.1)
    assert left[0].startswith("SLURM job")
    assert any("sleep 1000" in line for line in left)
    assert set(slurm.nodes().values()) == {"idle"}
    assert settle(hosts) == []


# Between tests, and after them


def test_hosts_are_as_new_after_a_test(hosts: Cluster, tmp_path: Path) -> None:
    """All that a test can do to a host is undone, and what still runs is named and ended."""
    host = hosts["h4"]
    path = tmp_path / "file"
    path.write_text("ours")
    host.overlay(path, "theirs")
    host.block_port(22)
    host.lock()
    host.stop_sshd()
    with started([*host.enter, "sleep", "1000"]) as process:
        assert until(lambda: runs_only(host, "sleep"))
        host.cut()
        assert settle(hosts, grace_s=0.1) == [f"{process.pid}: sleep 1000"]
    assert ssh(hosts, "h4", "cat", str(path)).stdout == "ours"
    assert settle(hosts) == []


def test_a_killed_pytest_leaves_nothing(hosts: Cluster) -> None:
    """Another one beside us has another number; its daemons die with it, and the next to come clears the rest."""
    program = """if True:
        import subprocess
        from tests.cluster.sshd import Cluster
        from tests.cluster.slurm import Slurm
        cluster = Cluster(n_hosts=1)
        slurm = Slurm(cluster, n_hosts=1)
        subprocess.Popen([*cluster.ssh, "h1", "exec sleep 1000"])
        while not cluster.wait_until_idle(0):
            pass
        daemons = [cluster.hosts[0].holder, *slurm._daemons]
        print(cluster.claim.number, cluster.wait_until_idle(0)[0].pid, *(d.pid for d in daemons), flush=True)
        input()
        """
    with started([sys.executable, "-c", program]) as other:
        assert other.stdout is not None
        number, sleeper, *daemons = map(int, other.stdout.readline().split())
        assert number != hosts.claim.number
        other.kill()
    assert len(daemons) == 4
    assert until(lambda: all(map(is_gone, daemons)))
    claim = take(number)
    assert claim is not None
    claim.release()
    assert claim.bridge not in links()
    assert not claim.folder.exists()
    assert until(lambda: is_gone(sleeper))


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
