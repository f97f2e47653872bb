"""`rollcall run` and `rollcall doctor` on virtual hosts of this machine."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.rollcall_command import Result, Runner

HELLO = """\
import socket, torch, torch.distributed as dist, rollcall
with rollcall.init() as world:
    tensor = torch.zeros(1)
    if world.is_first:
        tensor += 42
        dist.send(tensor, dst=1)
    else:
        dist.recv(tensor, src=0)
    print(socket.gethostname(), world.info.node_rank, int(tensor.item()))
"""


@pytest.fixture
def runner(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """Without the hosts of the cluster: these make their own."""
    return Runner(tmp_path_factory.mktemp("virtual"))


def test_one_master_and_one_worker(runner: Runner) -> None:
    """The walkthrough on one machine: two hosts, one sends, the other receives. run.json has each host with its
    versions, slots, address, interface and clock."""
    runner.script(HELLO)
    ran = runner("run", "--virtual-hosts", 2, "script.py")
    assert ran.code == 0, ran.err
    if "only loopback addresses" in ran.err:
        pytest.skip("no namespaces here: virtual hosts are loopback addresses")
    assert sorted(ran.out.splitlines()) == ["  0 │ host-1 0 42", "  1 │ host-2 1 42"]
    assert runner.wait_until_gone() == []
    facts = json.loads((runner.latest() / "run.json").read_text())["hosts"]
    assert list(facts) == ["host-1", "host-2"]
    assert all(each["slots"] == 1 and each["torch"] and each["python"] for each in facts.values())
    assert facts["host-1"]["address"] != facts["host-2"]["address"]
    assert all(abs(each["clock_offset_ns"]) < 1e9 and each["clock_error_ns"] > 0 for each in facts.values())


def test_a_slow_link_is_measured_as_slow(runner: Runner) -> None:
    """doctor sees the rate that --link asked for, or that it could not be had."""
    ran = runner("doctor", "--virtual-hosts", 2, "--link", "50mbit", "--json")
    if "only loopback addresses" in ran.err or "is not applied" in ran.err:
        pytest.skip("no namespaces here, or no tbf in this kernel")
    (way,) = json.loads(ran.out)["ways"]
    assert 10e6 < way["bytes_per_s"] * 8 < 60e6


def test_slots_are_counted_on_each_host(runner: Runner) -> None:
    """-n cpu asks the hosts, not the launcher; -n gpu names the host that has none."""
    runner.script("import os; print(os.environ['WORLD_SIZE'], os.environ['LOCAL_WORLD_SIZE'])")
    ran = runner("run", "--virtual-hosts", 2, "-n", "cpu", "script.py")
    assert ran.code == 0, ran.err
    world, local = map(int, ran.out.split("│")[1].split()[:2])
    assert world == 2 * local
    runner.env["CUDA_VISIBLE_DEVICES"] = ""
    refused = runner("run", "--virtual-hosts", 2, "-n", "gpu", "script.py")
    assert refused.code == 2
    assert "-n gpu, but host-1 has none" in refused.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--virtual-hosts", "0"], "--virtual-hosts 0 is not possible: use a number from 1 to 64"),
        (["--virtual-hosts", "2", "--hosts", "a"], "--hosts and --virtual-hosts both name hosts"),
        (["--virtual-hosts", "2", "--link", "fast"], "--link fast"),
        (["--hosts", "a", "--link", "1gbit"], "--link and --delay shape the network of virtual hosts"),
        (["--virtual-hosts", "2", "--sync"], "--sync copies by ssh"),
        (["--min-hosts", "2"], "--min-hosts needs a launcher that leads all hosts"),
        (["--virtual-hosts", "2", "--min-hosts", "3"], "at least 3 hosts are asked for, but 2 are named"),
        (["--python", "x"], "--python is for several hosts"),
        (["--nodes", "2"], "--nodes is for runs that a scheduler starts"),
        (["--slurm", "--kubernetes"], "--slurm and --kubernetes exclude each other"),
        (["--slurm", "--hosts", "a"], "--slurm finds the hosts by itself"),
        (["--kubernetes", "--nodes", "2"], "--image"),
        (["--slurm", "--nodes", "0"], "--nodes 0"),
        (["--virtual-hosts", "2", "--show", "7"], "--show names rank 7, but the ranks of this run are 0 to 1"),
    ],
)
def test_bad_input_is_one_sentence(
    refused: Callable[..., Result], tmp_path: Path, words: list[str], sentence: str
) -> None:
    """Exit code 2, and no run begins."""
    (tmp_path / "script.py").touch()
    ran = refused("run", *words, "script.py")
    assert (ran.code, ran.out) == (2, ""), ran.err
    assert sentence in ran.err
    assert len(ran.err.splitlines()) == 1
    assert not (tmp_path / ".rollcall").exists()
