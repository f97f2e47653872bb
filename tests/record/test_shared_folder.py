"""Ranks on several hosts that record into one folder: it can be read while they hang."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rollcall import find_free_port
from tests.record.rings_of import ops_of
from tests.rollcall_command import Runner, until

HANGS = """\
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
if dist.get_rank() == 1:
    time.sleep(600)
dist.all_reduce(torch.ones(4))
"""


@pytest.fixture
def hung(rollcall: Runner) -> Iterator[Runner]:
    """Rank 0 waits on this host, rank 1 sleeps on one of another name."""
    if os.geteuid():
        pytest.skip("needs root, for a host of another name")
    script = rollcall.script(HANGS)
    shared = {"ROLLCALL_RECORD": "recording", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    port = str(find_free_port())
    elsewhere = ["unshare", "--uts", "sh", "-c", f"hostname other-host && exec {sys.executable} {script}"]
    ranks = []
    try:
        for rank, command in enumerate(([sys.executable, str(script)], elsewhere)):
            env = {**rollcall.env, **shared, "MASTER_PORT": port, "RANK": str(rank)}
            ranks.append(subprocess.Popen(command, cwd=rollcall.folder, env=env, stderr=subprocess.DEVNULL))
        ring = rollcall.folder / "recording/rings/attempt-0/rank-0.ring"
        assert until(lambda: ring.exists() and ring.stat().st_size and ops_of(ring)[1:] == ["all_reduce"] * 2)
        yield rollcall
    finally:
        for process in ranks:
            process.kill()
            process.wait()


def test_a_folder_that_hosts_share_is_read_while_they_hang(hung: Runner) -> None:
    """Their clocks were not compared, which is said; what hangs is found all the same, with the line where it is."""
    facts = json.loads((hung.folder / "recording/run.json").read_text())
    (hung.folder / "recording/run.json").write_text(json.dumps({**facts, "plan": {"hang_after_s": 1}}))
    assert until(lambda: "verdict" in hung("explain", "recording").out)
    explained = hung("explain", "recording").out
    assert "2 of 2 ranks recorded" in explained
    assert "were not compared: who waited for whom is unknown" in explained
    assert "other-host" in explained
    assert "verdict: busy-rank — look at rank 1" in explained
    assert "script.py:5  time.sleep(600)" in explained
    watched = hung("watch", "recording", "--once").out
    assert "other-host" in watched
    assert "waiting" in watched
    assert hung("report", "recording", "--out", "page.html").code == 0
    assert "were not compared" in (hung.folder / "page.html").read_text()
