"""`rollcall doctor` on real hosts."""

import json
from pathlib import Path

from rollcall.compat.patches import PATCHES
from tests.agent.health.fake_nvml import build
from tests.cluster.sshd import Cluster
from tests.rollcall_command import Runner


def test_healthy_hosts_are_shown_with_all_pairs(rollcall: Runner) -> None:
    """Versions, clock, address and interface of each; round trip and throughput of each pair; exit code 0."""
    ran = rollcall("doctor", "--hosts", "h1,h2,h3", "--json")
    found = json.loads(ran.out)
    assert ran.code == 0, ran.err
    assert [(c["host"], c["stage"], c["interface"], c["problem"]) for c in found["checks"]] == [
        ("h1", "answered", "eth0", ""),
        ("h2", "answered", "eth0", ""),
        ("h3", "answered", "eth0", ""),
    ]
    assert {frozenset((w["start"], w["end"])) for w in found["ways"]} == {
        frozenset(pair) for pair in (("h1", "h2"), ("h1", "h3"), ("h2", "h3"))
    }
    assert all(w["round_trip_s"] > 0 and w["bytes_per_s"] > 1e6 and not w["error"] for w in found["ways"])


def test_each_failure_has_a_remedy(rollcall: Runner, hosts: Cluster) -> None:
    """A host without sshd, one whose port to the master is blocked: both named, exit code 1."""
    hosts["h3"].stop_sshd()
    hosts["h1"].block_port(29557)
    ran = rollcall("doctor", "--hosts", "h1,h2,h3", "--master-port", 29557)
    assert ran.code == 1
    assert "h3: ssh: connect to host" in ran.out
    assert "no sshd listens there: start it" in ran.out
    assert f"h2: cannot reach {hosts['h1'].address}:29557 on h1" in ran.out
    assert "Open the port" in ran.out


def test_bad_hosts_are_named_before_a_rank_starts(rollcall: Runner, hosts: Cluster, tmp_path: Path) -> None:
    """One has a broken GPU, another one a slow network. Nothing is started."""
    rollcall.script("open('started', 'w')")
    faults = ("--env", f"ROLLCALL_NVML={build(tmp_path)}", "--env", "FAKE_NVML=h2:ecc")
    slow = ["tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "20mbit", "burst", "32kb", "latency", "50ms"]
    hosts["h3"].run(slow)
    try:
        ran = rollcall("run", "--hosts", "h1:1,h2:1,h3:1", "--preflight", *faults, "script.py")
    finally:
        hosts["h3"].run(["tc", "qdisc", "del", "dev", "eth0", "root"])
    assert ran.code == 1, ran.err
    assert "preflight: h2: GPU 1 has 3 uncorrected ECC errors, expected 0" in ran.err
    assert "preflight: h3: what it sends on its fastest connection: " in ran.err, ran.err
    assert "preflight: h1" not in ran.err, ran.err
    assert not (rollcall.folder / "started").exists()
    assert rollcall.wait_until_gone() == []


def test_without_hosts_it_checks_this_machine(rollcall: Runner) -> None:
    """One row, no pairs, and a row for each patch."""
    ran = rollcall("doctor")
    assert ran.code == 0, ran.err
    assert "1 of 1 hosts are well" in ran.out
    assert {line.split("  ")[0] for line in ran.out.splitlines()} >= {patch.name for patch in PATCHES}


def test_bad_input_is_one_sentence(rollcall: Runner) -> None:
    """As for `rollcall run`."""
    ran = rollcall("doctor", "--hosts", "a:x")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("rollcall: 'x' in a:x is not a number of slots")
