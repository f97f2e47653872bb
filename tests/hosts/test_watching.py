"""`rollcall watch` sees ranks on hosts that do not share the run's folder."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollcall.explain.loading.load import load
from rollcall.live.reader import LiveRun
from rollcall.live.state import Observer, RankNow
from tests.cluster.sshd import Cluster
from tests.rollcall_command import Runner, until

# Rank 1 keeps rank 0 waiting until a file is there.
HELD_UP = """\
import os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(300):
    dist.all_reduce(torch.ones(10))
while dist.get_rank() == 1 and not os.path.exists("go"):
    time.sleep(0.02)
dist.all_reduce(torch.ones(10))
"""


@pytest.fixture
def work(hosts: Cluster) -> Iterator[Path]:
    """A folder that every host has for itself, with the program in it."""
    folder = hosts.private / "work"
    places = [folder, *(host.seen(folder) for host in hosts.hosts[:2])]
    for place in places:
        place.mkdir(parents=True, exist_ok=True)
        place.joinpath("script.py").write_text(HELD_UP)
    yield folder
    for place in places:
        shutil.rmtree(place, ignore_errors=True)


def test_ranks_without_a_shared_disk_are_seen(rollcall: Runner, hosts: Cluster, work: Path) -> None:
    """Only while somebody watches does each host show its ranks; their rings are whole when the run is over."""
    words = [sys.executable, "-m", "rollcall", "run", "--hosts", "h1:1,h2:1", "script.py"]
    run = subprocess.Popen(words, cwd=work, env={**rollcall.env, "ROLLCALL_DIR": str(work / ".rollcall")})
    latest = work / ".rollcall" / "runs" / "latest"
    try:
        assert until(lambda: _started(latest) == 2)
        folder = latest.resolve()
        assert not (folder / "rings").exists()
        live = LiveRun(folder)
        observer = Observer(live)
        seen: list[RankNow] = []

        def is_held() -> bool:
            """Before that, what the hosts have shown may be of different moments."""
            seen[:] = observer.look()
            states = [each.state for each in seen]
            return states == ["computing", "waiting"] and seen[1].doing == "all_reduce at script.py:8"

        assert until(is_held), seen
        late, waiting = seen
        assert (late.rank, late.host, late.state, late.holds_up) == (1, "h2", "computing", 1)
        assert (waiting.rank, waiting.host, waiting.waits_for) == (0, "h1", (1,))
        live.close()
    finally:
        hosts.hosts[1].seen(work).joinpath("go").touch()
        assert run.wait(60) == 0
    assert [len(rank.ops) for rank in load(folder).ranks.values()] == [302, 302]


def _started(folder: Path) -> int:
    """How many ranks."""
    run = LiveRun(folder)
    run.refresh()
    return len((run.facts.get("attempts") or [{}])[0].get("pids", {}))
