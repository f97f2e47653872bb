"""Where the name server does not answer, no process waits for it."""

import os
import shutil
import subprocess
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollcall.compat.torch_dns import impatient_env
from tests.rollcall_command import ROLLCALL, Runner
from tests.said import said


def _nameserver() -> str | None:
    lines = Path("/etc/resolv.conf").read_text().splitlines() if Path("/etc/resolv.conf").exists() else []
    servers = [line.split()[1] for line in lines if line.startswith("nameserver")]
    return servers[0] if len(servers) == 1 and servers[0].count(".") == 3 else None


@pytest.fixture
def silent_network() -> Iterator[list[str]]:
    """A network namespace where the machine's name server is an address that never answers."""
    server = _nameserver()
    if os.geteuid() or shutil.which("ip") is None or server is None or server.startswith("127."):
        pytest.skip("needs root, iproute2 and one IPv4 name server: a network namespace is made for this test")
    name = f"rollcall-{os.getpid()}"
    neighbour = server.rpartition(".")[0] + (".1" if not server.endswith(".1") else ".2")
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        for words in (
            "link set lo up",
            "link add v0 type veth peer name v1",
            f"addr add {neighbour}/24 dev v0",
            "link set v0 up",
            "link set v1 up",
            f"neigh add {server} lladdr 02:00:00:00:00:01 dev v0",
        ):
            subprocess.run(["ip", "-n", name, *words.split()], check=True)
        yield ["nsenter", f"--net=/run/netns/{name}"]
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


def test_ranks_do_not_wait_for_a_name_server_that_does_not_answer(rollcall: Runner, silent_network: list[str]) -> None:
    """torch warns of each name it asked for in vain: no such warning comes, from the agent or from a rank."""
    rollcall.script("import torch.distributed as dist\ndist.init_process_group('gloo')\ndist.barrier()\nprint('met')\n")
    ran = subprocess.run(
        [*silent_network, *ROLLCALL, "run", "-n", "3", "script.py"],
        cwd=rollcall.folder,
        env=rollcall.env,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert said(ran.stdout) == {"met": [0, 1, 2]}, ran.stderr
    slow = "rollcall: waiting: "  # a busy machine; torch's lines do not begin so
    assert [line for line in ran.stderr.splitlines() if not line.startswith(slow)] == []


def test_the_users_own_choice_is_kept() -> None:
    """Who has set RES_OPTIONS knows what they do."""
    assert impatient_env({"RES_OPTIONS": "timeout:30"}) == {}


def test_the_look_up_beside_threads_warns_of_nothing() -> None:
    """From Python 3.12 on, a fork beside threads is a warning."""
    held = threading.Event()
    beside = threading.Thread(target=held.wait)
    beside.start()
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            impatient_env({})
    finally:
        held.set()
        beside.join()
    assert warned == []
