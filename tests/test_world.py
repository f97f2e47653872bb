import json
import os
import socket
import subprocess
import sys

import pytest
from pydantic import ValidationError

import rollcall
from rollcall import RankInfo, World, display, get_hostname, get_process_id, rank_zero_only

KEYS = [
    *("master_addr", "master_port", "nnodes", "nproc_per_node", "node_rank", "world_size", "backend"),
    *("init_method", "global_rank", "local_world_size", "local_rank", "hostname", "process_id"),
]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return rollcall.init()


def test_a_world_of_one(world: World) -> None:
    """Alone, a process is rank 0 of 1, on gloo where it has no GPU, with all thirteen facts in order."""
    with world:
        assert (world.rank, world.size, world.is_first) == (0, 1, True)
        facts = json.loads(world.info.model_dump_json(indent=4))
        assert list(facts) == KEYS
        assert facts["master_port"] == "12356"
        assert (facts["hostname"], facts["process_id"]) == (socket.gethostname(), os.getpid())
        world.barrier()


def test_facts_are_frozen(world: World) -> None:
    """Nobody can change the facts of a rank."""
    with world, pytest.raises(ValidationError, match="frozen"):
        world.info.global_rank = 1  # type: ignore[misc]
    assert isinstance(world.info, RankInfo)


def test_display_before_and_inside_a_group(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The lines show what was passed, and what the group has, if there is one."""
    before = display(0, 1)
    assert "no group yet" in before
    with rollcall.init():
        text = display(0, 1)
    assert text.splitlines() == [
        "Explicit rank: 0",
        "Explicit world size: 1",
        f"Hostname: {get_hostname()}",
        "torch.distributed available: True",
        "World size in the initialised group: 1",
        "Rank in the initialised group: 0",
    ]
    assert capsys.readouterr().out == f"{before}\n{text}\n"


def test_rank_zero_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only rank 0 runs the function: without a group, as a launcher's rank, and inside a group."""

    @rank_zero_only
    def work(value: int) -> int:
        return value

    assert work(5) == 5
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert work(5) is None
    # The group's rank comes before the environment's.
    with rollcall.init(rank=0, world_size=1):
        assert work(5) == 5
    assert work.__name__ == "work"


def test_process_facts() -> None:
    """Hostname and process id are the system's."""
    assert (get_hostname(), get_process_id()) == (socket.gethostname(), os.getpid())


def test_import_without_torch() -> None:
    """A process can find its rank and a port without importing torch."""
    code = "import rollcall.world, rollcall.ports, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
