"""Nodes that are started one by one, with the origin's flags."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from rollcall.errors import UsageError
from rollcall.lab import door
from rollcall.lab.node import Node
from rollcall.launch.ways import virtual
from rollcall.ports import find_free_port, listen

SCRIPTS = Path(__file__).parents[2] / "docs" / "lab"
NO_BARRIER = "I HAVE NO BARRIER DUDE!"
BARRIER = "I HAVE BARRIER DUDE! WAITING FOR ALL PROCESSES TO SYNCHRONIZE..."
RESULTS = "Results: [[1, 2, 3]]"
FACTS = (
    "master_addr", "master_port", "nnodes", "nproc_per_node", "node_rank", "world_size", "backend", "init_method",
    "global_rank", "local_world_size", "local_rank", "hostname", "process_id",
)  # fmt: skip


@contextmanager
def node(
    *words: str, enter: tuple[str, ...] = (), env: dict[str, str] | None = None
) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [*enter, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **(env or {})}
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def lab(name: str, *flags: str) -> list[str]:
    return [sys.executable, "-m", f"rollcall.lab.{name}", *flags]


def facts_in(text: str) -> list[dict[str, object]]:
    """The JSON objects that ranks have logged."""
    return [json.loads(found) for found in re.findall(r"rank \d+: (\{.*?^\})", text, re.S | re.M)]


def test_the_origins_command_says_the_origins_lines(free_port_base: int) -> None:
    """All flags verbatim: each rank's thirteen facts, indented by four, its message, its result."""
    flags = (
        "--master_addr=localhost", f"--master_port={free_port_base}", "--nnodes=1", "--nproc_per_node=2",
        "--node_rank=0", "--world_size=2", "--backend=gloo", "--init_method=env://", "--run_with_no_barrier",
    )  # fmt: skip
    with node(*lab("barrier", *flags)) as one:
        said, _ = one.communicate(timeout=120)
    assert one.returncode == 0, said
    facts = facts_in(said)
    assert sorted(fact["global_rank"] for fact in facts) == [0, 1]
    assert all(tuple(fact) == FACTS and fact["master_port"] == str(free_port_base) for fact in facts)
    for rank in (0, 1):
        assert said.index(f"rank {rank}: {NO_BARRIER}") < said.index(f"rank {rank}: {RESULTS}")
    assert '\n    "master_addr": "localhost",\n' in said


def test_two_nodes_meet_at_the_next_free_port(free_port_base: int) -> None:
    """The worker first, the port in use: the master takes the next one and tells all; no result precedes a message."""
    flags = ("--nnodes=2", "--nproc_per_node=2", "--world_size=4", "--backend=gloo", f"--master_port={free_port_base}")
    with listen("localhost", free_port_base), node(*lab("barrier", *flags, "--node_rank=1")) as worker:
        with node(*lab("barrier", *flags, "--node_rank=0")) as master:
            first, _ = master.communicate(timeout=120)
        second, _ = worker.communicate(timeout=120)
    assert (master.returncode, worker.returncode) == (0, 0), first + second
    facts = sorted(facts_in(first) + facts_in(second), key=lambda fact: int(str(fact["global_rank"])))
    assert [(fact["node_rank"], fact["local_rank"]) for fact in facts] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    taken = {str(fact["master_port"]) for fact in facts}
    assert len(taken) == 1
    assert taken != {str(free_port_base)}
    assert f"port {free_port_base} is in use" in first
    for said in (first, second):
        assert said.count(BARRIER) == said.count(RESULTS) == 2
        assert said.rindex(BARRIER) < said.index(RESULTS)


def test_nodes_that_disagree_hear_the_same_sentence(free_port_base: int) -> None:
    """Who has what, on both sides; no rank has started."""
    flags = {"nnodes": 2, "master_port": free_port_base}
    nodes = (Node.of({**flags, "node_rank": 0}, 2, "gloo"), Node.of({**flags, "node_rank": 1}, 1, "gloo"))

    def meet(node: Node) -> str:
        with pytest.raises(UsageError) as caught, door.meet("barrier", node):
            pass
        return str(caught.value)

    with ThreadPoolExecutor(2) as both:
        first, second = both.map(meet, nodes)
    assert first == second
    assert "has --nproc_per_node 1, node 0" in first
    assert "give all nodes the same" in first


def test_a_node_that_is_there_twice_is_refused(free_port_base: int) -> None:
    """Of three nodes two say that they are node 1: all three hear it."""
    flags = {"nnodes": 3, "nproc_per_node": 1, "master_port": free_port_base}
    nodes = [Node.of({**flags, "node_rank": rank}, None, "gloo") for rank in (0, 1, 1)]

    def meet(node: Node) -> str:
        with pytest.raises(UsageError) as caught, door.meet("barrier", node):
            pass
        return str(caught.value)

    with ThreadPoolExecutor(3) as all_three:
        assert set(all_three.map(meet, nodes)) == {"node 1 is there twice: give every node a --node_rank of its own"}


def test_a_master_and_a_worker_on_two_hosts(free_port_base: int) -> None:
    """The two start scripts, each on a virtual host: one world, whose ranks know both hosts."""
    with virtual.hosts(2, tell=lambda _: None) as (alpha, beta):
        env = {
            "MASTER_ADDR": alpha.address, "MASTER_PORT": str(free_port_base), "PROCESSES": "1",
            "PYTHON": sys.executable,
        }  # fmt: skip
        with node(str(SCRIPTS / "start-worker.sh"), "send", enter=beta.enter, env=env) as worker:
            with node(str(SCRIPTS / "start-master.sh"), "send", enter=alpha.enter, env=env) as master:
                first, _ = master.communicate(timeout=120)
            second, _ = worker.communicate(timeout=120)
        assert (master.returncode, worker.returncode) == (0, 0), first + second
        (one,), (other,) = facts_in(first), facts_in(second)
        assert (one["nnodes"], one["node_rank"], other["node_rank"]) == (2, 0, 1)
        if alpha.enter:
            assert (one["hostname"], other["hostname"]) == ("host-1", "host-2")
        assert "rank 1: before: 0, after: 1" in second


@pytest.fixture
def free_port_base() -> int:
    """A port with free ones behind it, most likely."""
    return find_free_port()
