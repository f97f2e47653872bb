"""Nodes that are started one by one, with the flags of torch.distributed.launch."""

import gc
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from rollcall.cli.app import app
from rollcall.errors import UsageError
from rollcall.lab.experiment import load
from rollcall.lab.runner import by_hand, node_rendezvous
from rollcall.lab.runner.node import Node
from rollcall.ports import find_free_port
from rollcall.transport.virtual import hosts as virtual_hosts

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


def facts_in(text: str) -> list[dict[str, object]]:
    """The JSON objects that ranks have logged."""
    return [json.loads(found) for found in re.findall(r"rank \d+: (\{.*?^\})", text, re.S | re.M)]


def test_one_node_logs_facts_message_and_result(free_port_base: int, capfd: pytest.CaptureFixture[str]) -> None:
    """With all flags: each rank logs its thirteen facts, indented by four, its message and its result."""
    flags = (
        "--master_addr=localhost", f"--master_port={free_port_base}", "--nnodes=1", "--nproc_per_node=2",
        "--node_rank=0", "--world_size=2", "--backend=gloo", "--init_method=env://", "--run_with_no_barrier",
    )  # fmt: skip
    assert app(["lab", "barrier", *flags], standalone_mode=False) == 0
    output = "".join(capfd.readouterr())
    facts = facts_in(output)
    assert sorted(fact["global_rank"] for fact in facts) == [0, 1]
    assert all(tuple(fact) == FACTS and fact["master_port"] == str(free_port_base) for fact in facts)
    for rank in (0, 1):
        assert output.index(f"rank {rank}: {NO_BARRIER}") < output.index(f"rank {rank}: {RESULTS}")
    assert '\n    "master_addr": "localhost",\n' in output


def test_nodes_that_disagree_print_the_same_sentence(free_port_base: int) -> None:
    """It says which node has which flag; no rank has started."""
    flags = {"nnodes": 2, "master_port": free_port_base}
    first, second = refusals(
        (Node.of({**flags, "node_rank": 0}, 2, "gloo"), {}), (Node.of({**flags, "node_rank": 1}, 1, "gloo"), {})
    )
    assert first == second
    assert "has --nproc_per_node 1, node 0" in first
    assert "give all nodes the same" in first


def test_a_barrier_on_one_node_alone_is_refused(free_port_base: int) -> None:
    """Its ranks would wait for the others forever."""
    flags = {"nnodes": 2, "nproc_per_node": 1, "master_port": free_port_base}
    nodes = [Node.of({**flags, "node_rank": rank}, None, "gloo") for rank in (0, 1)]
    first, second = refusals((nodes[0], {}), (nodes[1], {"run_with_no_barrier": True}))
    assert first == second
    assert "has --run_with_no_barrier, node 0" in first
    assert "has not: give all nodes the same" in first


def refusals(*nodes: tuple[Node, dict[str, object]]) -> list[str]:
    """What each node is told, when all start at the same time."""

    def refusal(node: tuple[Node, dict[str, object]]) -> str:
        with pytest.raises(UsageError) as caught, node_rendezvous.agree("barrier", *node):
            pass
        return str(caught.value)

    with ThreadPoolExecutor(len(nodes)) as threads:
        found = list(threads.map(refusal, nodes))
    gc.collect()  # the stores that tracebacks hold have threads: a fork of this process must not end them
    return found


def test_a_node_that_was_started_twice_is_refused(free_port_base: int) -> None:
    """Two of three nodes say that they are node 1: all three print it."""
    flags = {"nnodes": 3, "nproc_per_node": 1, "master_port": free_port_base}
    nodes = [(Node.of({**flags, "node_rank": rank}, None, "gloo"), {}) for rank in (0, 1, 1)]
    assert set(refusals(*nodes)) == {"node 1 was started twice: give every node a --node_rank of its own"}


def test_a_case_that_hangs_is_ended_and_reported(
    free_port_base: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Hanging is what the experiment shows: exit code 0, and the command that explains it."""
    monkeypatch.setattr(by_hand, "_START_S", 1.5)
    deadlock = load("deadlock")
    brief = replace(deadlock, cases=(replace(deadlock.cases[0], limit_s=0.5),))
    node = Node.of({"master_port": free_port_base, "nproc_per_node": 2}, None, "gloo")
    assert by_hand.run(brief, node, None, {}) == 0
    output = capfd.readouterr().err
    assert "recv recv: Ranks 0 and 1 both receive first" in output
    assert "recv recv: 2 of 2 ranks of this node hung and were ended" in output


@dataclass(frozen=True)
class TwoNodes:
    """The output of a master and a worker, each on a virtual host, when the master's port was in use."""

    busy_port: int
    master: str
    worker: str
    have_names: bool

    @property
    def facts(self) -> list[dict[str, object]]:
        found = facts_in(self.master) + facts_in(self.worker)
        return sorted(found, key=lambda fact: int(str(fact["global_rank"])))


HOLD = (
    "import sys, rollcall.ports as p; s = p.listen(sys.argv[1], int(sys.argv[2])); print(flush=True); sys.stdin.read()"
)


@contextmanager
def busy(host: virtual_hosts.VirtualHost, port: int) -> Iterator[None]:
    """Another process on that host has the port."""
    words = [*host.enter, sys.executable, "-c", HOLD, host.address, str(port)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout
        holder.stdout.readline()
        try:
            yield
        finally:
            holder.kill()


@pytest.fixture(scope="module")
def two_nodes() -> TwoNodes:
    """The two start scripts, the worker first."""
    port = find_free_port()
    with virtual_hosts.hosts(2, tell=lambda _: None) as (alpha, beta), busy(alpha, port):
        env = {"MASTER_ADDR": alpha.address, "MASTER_PORT": str(port), "PROCESSES": "2", "PYTHON": sys.executable}
        with node(str(SCRIPTS / "start-worker.sh"), "barrier", enter=beta.enter, env=env) as worker:
            with node(str(SCRIPTS / "start-master.sh"), "barrier", enter=alpha.enter, env=env) as master:
                first, _ = master.communicate(timeout=180)
            second, _ = worker.communicate(timeout=180)
        assert (master.returncode, worker.returncode) == (0, 0), first + second
        return TwoNodes(port, first, second, bool(alpha.enter))


def test_two_nodes_are_one_world(two_nodes: TwoNodes) -> None:
    """Ranks are numbered through both, and know both hosts."""
    places = [(fact["node_rank"], fact["local_rank"]) for fact in two_nodes.facts]
    assert places == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert {fact["nnodes"] for fact in two_nodes.facts} == {2}
    if two_nodes.have_names:
        assert [fact["hostname"] for fact in two_nodes.facts] == ["host-1", "host-1", "host-2", "host-2"]


def test_if_the_port_is_in_use_all_nodes_take_the_next(two_nodes: TwoNodes) -> None:
    """The master takes the next free one, and the worker finds it."""
    taken = {str(fact["master_port"]) for fact in two_nodes.facts}
    assert len(taken) == 1
    assert taken != {str(two_nodes.busy_port)}
    assert f"port {two_nodes.busy_port} is in use" in two_nodes.master


def test_by_hand_no_result_precedes_a_message(two_nodes: TwoNodes) -> None:
    """On each node all messages come before all results, with the barrier."""
    for output in (two_nodes.master, two_nodes.worker):
        assert output.count(BARRIER) == output.count(RESULTS) == 2
        assert output.rindex(BARRIER) < output.index(RESULTS)


@pytest.fixture
def free_port_base() -> int:
    """A port with free ones behind it, most likely."""
    return find_free_port()
