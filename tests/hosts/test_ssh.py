"""Runs over real ssh, on hosts with networks and hostnames of their own."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.cluster.sshd import Cluster
from tests.rollcall_command import Runner
from tests.said import read_until, said

from .conftest import SUM, lines_of


def test_ranks_follow_the_order_of_the_hosts(rollcall: Runner, hosts: Cluster) -> None:
    """Unequal slots, in the order of the list, on the interface that leads to the master. What .bashrc prints before
    our own first word is passed over."""
    rollcall.script(SUM)
    bashrc = Path.home() / ".bashrc"
    if bashrc.exists():  # else there is none to put another in place of
        for host in hosts.hosts[:2]:
            host.overlay(bashrc, "echo Welcome to the machine\nprintf 'no newline'\n")
    ran = rollcall("run", "--hosts", "h3:1,h1:3,h2:2", "script.py")
    assert lines_of(ran.out) == [
        "0 h3 0 0 6 eth0",
        "1 h1 0 1 6 eth0",
        "2 h1 1 1 6 eth0",
        "3 h1 2 1 6 eth0",
        "4 h2 0 2 6 eth0",
        "5 h2 1 2 6 eth0",
    ], ran.err
    assert (ran.code, ran.err) == (0, "")


def test_a_hostfile_names_the_same(rollcall: Runner) -> None:
    """--hostfile takes the place of --hosts."""
    rollcall.script(SUM)
    (rollcall.folder / "hosts").write_text("h2 slots=2\nh1 slots=1\n")
    by_file = rollcall("run", "--dry-run", "--hostfile", "hosts", "script.py")
    by_name = rollcall("run", "--dry-run", "--hosts", "h2:2,h1:1", "script.py")
    assert (by_file.code, by_file.out) == (0, by_name.out), by_file.err


def test_init_knows_all_thirteen_facts(rollcall: Runner, hosts: Cluster) -> None:
    """rollcall.init() on every host: master, counts, ranks and hostname agree. The run also has three options:
    --env passes variables on, LD_LIBRARY_PATH too, and `ps` shows none of their values on any host; --allow-mixed takes
    hosts as they are (that they are refused without it is in the fault matrix); and a --python that takes its time on
    one host has this host named after five seconds, with its last known stage."""
    rollcall.env["MY_TOKEN"] = "very-secret"
    rollcall.script(
        "import json, os, pathlib, rollcall\n"
        "seen = [p.read_bytes() for p in pathlib.Path('/proc').glob('[0-9]*/cmdline')]\n"
        "passed = [os.environ['MY_TOKEN'], os.environ['LD_LIBRARY_PATH'], any(b'very-secret' in s for s in seen)]\n"
        "with rollcall.init() as world:\n"
        "    print(json.dumps({**world.info.model_dump(), 'passed': passed}))\n"
    )
    version_file = Path(torch.__file__).with_name("version.py")
    hosts["h2"].overlay(version_file, version_file.read_text().replace("2.13.0", "2.12.0"))
    slow = rollcall.folder / "slow-python"
    slow.write_text(f'#!/bin/sh\n[ "$(hostname)" = h2 ] && sleep 6\nexec {sys.executable} "$@"\n')
    slow.chmod(0o755)
    options = ["--env", "MY_*", "--env", "LD_LIBRARY_PATH=/opt/none", "--allow-mixed", "--python", slow]
    ran = rollcall("run", "--hosts", "h1:2,h2:1", *options, "script.py")
    assert ran.code == 0, ran.err
    facts = [json.loads(line.split(" │ ", 1)[1]) for line in ran.out.splitlines()]
    facts.sort(key=lambda each: each["global_rank"])
    assert [(f["hostname"], f["local_rank"], f["local_world_size"], f["node_rank"]) for f in facts] == [
        ("h1", 0, 2, 0),
        ("h1", 1, 2, 0),
        ("h2", 0, 1, 1),
    ]
    assert {(f["nnodes"], f["world_size"], f["master_addr"], f["backend"]) for f in facts} == {
        (2, 3, facts[0]["master_addr"], "gloo")
    }
    assert facts[0]["master_addr"].startswith("10.77.")
    assert [f["passed"] for f in facts] == [["very-secret", "/opt/none", False]] * 3
    assert "waiting: 1 of 2 hosts did not answer — h2: ssh connected" in ran.err


def test_failures_come_back(rollcall: Runner) -> None:
    """A rank that fails is named with its host, and leads to the next attempt on all hosts, with a store of its own.
    The exit code of the last failure is the run's."""
    rollcall.script(
        "import os, sys, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' and dist.get_rank() == 1:\n"
        "    os.kill(os.getpid(), 9)\n"
        "dist.barrier()\n"
        "print('met', os.environ['TORCHELASTIC_RESTART_COUNT'])\n"
        "dist.barrier()\n"
        "if dist.get_rank() == 2:\n"
        "    sys.exit(7)\n"
        "dist.barrier()\n"
    )
    ran = rollcall("run", "--hosts", "h1:1,h2:1,h3:1", "--max-restarts", 1, "script.py")
    assert (ran.code, said(ran.out)) == (7, {"met 1": [0, 1, 2]}), ran.err
    assert "rank 1 on h2 was killed by SIGKILL" in ran.err
    assert "rank 2 on h3 exited with code 7" in ran.err


def test_logs_and_files_come_back_without_a_shared_disk(rollcall: Runner, hosts: Cluster) -> None:
    """Where the run's folder is not seen, the launcher keeps the logs, and gets what ranks left in their folder."""
    folder = hosts.private / "work"
    for host in hosts.hosts[:2]:
        host.seen(folder).mkdir()
        host.seen(folder).joinpath("script.py").write_text(
            "import os, pathlib\n"
            "print('hello from', os.environ['RANK'])\n"
            "kept = pathlib.Path(os.environ['ROLLCALL_RUN'], 'kept')\n"
            "kept.mkdir(exist_ok=True)\n"
            "(kept / os.environ['RANK']).write_bytes(b'x' * 3_000_000)\n"
        )
    folder.mkdir(parents=True, exist_ok=True)  # the launcher's own, with another script
    folder.joinpath("script.py").write_text("print('never')\n")
    try:
        ran = subprocess.run(
            [sys.executable, "-m", "rollcall", "run", "--hosts", "h1:1,h2:1", "script.py"],
            cwd=folder,
            env={**rollcall.env, "ROLLCALL_DIR": str(folder / ".rollcall")},
            capture_output=True,
            text=True,
            timeout=180,
        )
        assert ran.returncode == 0, ran.stderr
        latest = folder / ".rollcall" / "runs" / "latest"
        logs = [(latest / "logs" / "attempt-0" / f"rank-{rank}.log").read_text() for rank in (0, 1)]
        assert logs == ["hello from 0\n", "hello from 1\n"]
        assert [(latest / "kept" / str(rank)).stat().st_size for rank in (0, 1)] == [3_000_000] * 2
    finally:
        shutil.rmtree(folder)
    assert [list(host.seen(Path("/tmp")).glob("rollcall-*-kept")) for host in hosts.hosts[:2]] == [[], []]


def test_a_hang_is_explained_without_a_shared_disk(rollcall: Runner, hosts: Cluster) -> None:
    """Each host watches its own ranks, and shows the launcher where they are while they hang."""
    folder = hosts.private / "work"
    program = (
        'import torch, torch.distributed as dist\ndist.init_process_group("gloo")\n'
        "if dist.get_rank() == 1:\n    dist.recv(torch.ones(1), src=0)\n"
        "dist.barrier()\n"
    )
    for host in hosts.hosts[:2]:
        host.seen(folder).mkdir()
        host.seen(folder).joinpath("script.py").write_text(program)
    folder.mkdir(parents=True, exist_ok=True)
    folder.joinpath("script.py").write_text(program)
    try:
        words = ["run", "--hosts", "h1:1,h2:1", "--hang-after", "4", "--on-hang", "stop", "--grace", "1", "script.py"]
        ran = subprocess.run(
            [sys.executable, "-m", "rollcall", *words],
            cwd=folder,
            env={**rollcall.env, "ROLLCALL_DIR": str(folder / ".rollcall")},
            capture_output=True,
            text=True,
            timeout=180,
        )
    finally:
        shutil.rmtree(folder)
    assert ran.returncode == 124, ran.stderr
    assert "rollcall: verdict: p2p-against-collective — look at ranks 0-1" in ran.stderr
    assert "  rank 1: script.py:4 in <module>" in ran.stderr


def test_sync_copies_the_working_tree(rollcall: Runner, hosts: Cluster) -> None:
    """--sync brings script and data to hosts without a shared disk, but not what .gitignore names."""
    if shutil.which("rsync") is None:
        pytest.skip("rsync is not installed")
    folder = hosts.private / "tree"
    folder.mkdir(parents=True)
    (folder / ".gitignore").write_text("*.ckpt\n")
    (folder / "big.ckpt").write_text("not this")
    (folder / "data").mkdir()
    (folder / "data" / "x.txt").write_text("42")
    (folder / "script.py").write_text("import os; print(open('data/x.txt').read(), os.path.exists('big.ckpt'))")
    try:
        ran = subprocess.run(
            [sys.executable, "-m", "rollcall", "run", "--sync", "--hosts", "h1:1,h2:1", "script.py"],
            cwd=folder,
            env={**rollcall.env, "ROLLCALL_DIR": str(rollcall.folder / ".rollcall")},
            capture_output=True,
            text=True,
            timeout=180,
        )
    finally:
        shutil.rmtree(folder)
    assert said(ran.stdout) == {"42 False": [0, 1]}, ran.stderr
    assert "to 2 hosts" in ran.stderr


def test_hosts_that_do_not_answer_are_named_with_their_stage(rollcall: Runner, hosts: Cluster) -> None:
    """Each by how far it came and what to do: refused, key not taken, unknown name, no folder."""
    rollcall.script(SUM)
    hosts["h2"].stop_sshd()
    hosts["h3"].lock()
    ran = rollcall("run", "--hosts", "h1:1,h2:1,h3:1,nowhere:1", "script.py")
    assert ran.code == 1
    assert "3 of 4 hosts did not answer" in ran.err
    assert "h2: ssh: connect to host" in ran.err
    assert "no sshd listens there" in ran.err
    assert "h3: " in ran.err
    assert "`ssh-copy-id root@h3`" in ran.err or "`ssh-copy-id h3`" in ran.err
    assert "nowhere: " in ran.err
    assert "nobody knows this name" in ran.err


def test_a_python_that_is_not_there_is_named(rollcall: Runner) -> None:
    """With the stage that the host came to."""
    rollcall.script(SUM)
    ran = rollcall("run", "--hosts", "h1:1,h2:1", "--python", "/no/such/python", "script.py")
    assert ran.code == 1
    assert "h2: ssh connected, python not found: /no/such/python — install it at the same path" in ran.err


def test_a_blocked_port_is_named_before_ranks_start(rollcall: Runner, hosts: Cluster) -> None:
    """The host that cannot reach the master says where it knocked, and who might be in the way."""
    rollcall.script("print('never')")
    hosts["h1"].block_port(29555)
    ran = rollcall("run", "--hosts", "h1:1,h2:1,h3:1", "--master-port", "29555", "script.py")
    assert (ran.code, ran.out) == (1, "")
    assert f"h2: cannot reach {hosts['h1'].address}:29555 on h1" in ran.err
    assert "firewall?" in ran.err


def test_ctrl_c_twice_ends_ranks_that_do_not_want_to(rollcall: Runner) -> None:
    """The first asks, the second ends them now, on all hosts."""
    rollcall.script(
        "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('deaf', flush=True)\ntime.sleep(60)\n"
    )
    process = rollcall.start("run", "--hosts", "h1:1,h2:1", "--grace", "60", "script.py")
    read_until(process, "deaf", [0, 1])
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert "Ctrl-C again: end them now" in process.stderr.readline()  # two signals that come as one are one
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=180)
    assert process.returncode == 130


def test_a_busy_master_port_is_one_sentence(rollcall: Runner, hosts: Cluster) -> None:
    """Said by the first host, with who holds it."""
    rollcall.script("print('never')")
    hold = "import socket, time; s = socket.create_server(('', 29556)); print(1, flush=True); time.sleep(60)"
    holder = subprocess.Popen([*hosts["h1"].enter, sys.executable, "-c", hold], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        ran = rollcall("run", "--hosts", "h1:1,h2:1", "--master-port", "29556", "script.py")
    finally:
        with holder:
            holder.kill()
    assert ran.code == 2
    assert "h1: port 29556" in ran.err
    assert "in use" in ran.err


def test_hosts_end_their_ranks_when_the_launcher_sleeps(rollcall: Runner, hosts: Cluster) -> None:
    """A laptop that sleeps says nothing, and its connections stay: after 15 s no rank is left."""
    rollcall.script("import time; print('up', flush=True); time.sleep(60)")
    process = rollcall.start("run", "--hosts", "h1:1,h2:1", "script.py")
    read_until(process, "up", [0, 1])
    process.send_signal(signal.SIGSTOP)
    try:
        assert hosts.wait_until_idle(15) == []
    finally:
        process.send_signal(signal.SIGCONT)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 1, err
    assert "rollcall here was stopped for" in err
    assert "was lost" in err


def test_dry_run_says_what_one_would_have_typed(rollcall: Runner) -> None:
    """For each host and rank; nothing is started, and no host is asked."""
    rollcall.script(SUM)
    ran = rollcall("run", "--hosts", "alpha:2,beta:1", "--dry-run", "script.py")
    assert ran.code == 0, ran.err
    assert "3 ranks of script.py\non 2 hosts with 2, 1 slots" in ran.out
    assert "# on beta (node 1), without rollcall:" in ran.out
    assert "MASTER_ADDR=alpha MASTER_PORT=29500 WORLD_SIZE=3 RANK=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1" in ran.out


def test_clocks_of_hosts_are_brought_together(rollcall: Runner) -> None:
    """Hosts whose clocks are 1000 s apart: waits are counted on one clock, for the rank that keeps the others."""
    rollcall.script(
        'import time, torch.distributed as dist\ndist.init_process_group("gloo")\n'
        "for _ in range(4):\n"
        "    if dist.get_rank() == 1:\n        time.sleep(0.8)\n"  # longer than clocks differ on a busy machine
        "    dist.barrier()\n"
    )
    assert rollcall("run", "--hosts", "h1:1,h2:1", "script.py").code == 0
    hosts = json.loads((rollcall.latest() / "run.json").read_text())["hosts"]
    assert hosts["h2"]["clock_readings"][0][1] - hosts["h1"]["clock_readings"][0][1] == pytest.approx(1e12, rel=1e-3)
    waits = {wait["rank"]: wait for wait in json.loads(rollcall("explain", "--json").out)["waits"]}
    assert 1 < waits[1]["caused_s"] < 60
    assert waits[1]["last_in_calls"] >= 3
