"""What a run leaves in its rings."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rollcall.explain.load import Op, load
from tests.rollcall_command import Runner

HEAD = """\
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
t = torch.ones(4)
"""


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


def ops_of(runner: Runner, body: str, *options: object, ranks: int = 2) -> dict[int, tuple[Op, ...]]:
    runner.script(HEAD + body)
    ran = runner("run", "-n", ranks, *options, "script.py")
    assert ran.code == 0, ran.err
    return {rank.number: rank.ops for rank in load(runner.latest().resolve()).ranks.values()}


@pytest.mark.parametrize(
    ("call", "op", "facts"),
    [
        ("dist.all_reduce(t, op=dist.ReduceOp.MAX)", "all_reduce", {"reduce": "MAX", "size_bytes": 16}),
        (
            "dist.all_gather([torch.tensor(0.0) for _ in range(size)], torch.tensor(1.0))",
            "all_gather",
            {"size_bytes": 4},
        ),
        ("dist.broadcast(t, src=1)", "broadcast", {"peer": 1}),
        ("dist.reduce(t, dst=1)", "reduce", {"peer": 1, "reduce": "SUM"}),
        ("dist.all_gather([torch.empty(4) for _ in range(size)], t)", "all_gather", {"size_bytes": 16}),
        ("dist.all_gather_into_tensor(torch.empty(8), t)", "all_gather", {"size_bytes": 16}),
        ("dist.gather(t, [torch.empty(4) for _ in range(size)] if rank == 0 else None)", "gather", {"peer": 0}),
        ("dist.scatter(t, [torch.ones(4)] * size if rank == 0 else None)", "scatter", {"peer": 0}),
        ("dist.all_to_all_single(torch.empty(4), t)", "all_to_all", {}),
        ("dist.barrier()", "barrier", {}),
        ("dist.monitored_barrier()", "barrier", {}),
        ("dist.all_gather_object([None] * size, {'a': 1})", "all_gather", {}),
        ("dist.new_group([0, 1])", "new_group", {}),
        ("with torch.inference_mode(): dist.all_reduce(torch.ones(4))", "all_reduce", {"reduce": "SUM"}),
    ],
)
def test_an_op_is_recorded_with_what_it_is_about(runner: Runner, call: str, op: str, facts: dict[str, object]) -> None:
    """Op, root, reduce op, size and the user's own line; entered and completed on both ranks."""
    ops = ops_of(runner, call + "\n")
    for rank in (0, 1):
        found = [each for each in ops[rank] if each.op == op]
        assert found, [each.op for each in ops[rank]]
        last = found[-1]
        assert {name: getattr(last, name) for name in facts} == facts
        assert str(last.site) == "script.py:5"
        assert last.completed_ns >= last.entered_ns > 0


def test_sends_and_receives_know_their_partner_and_tag(runner: Runner) -> None:
    """Also through isend, irecv and batch_isend_irecv."""
    ops = ops_of(
        runner,
        "if rank == 0:\n"
        "    dist.send(t, dst=1, tag=7)\n"
        "else:\n"
        "    dist.recv(t, src=0, tag=7)\n"
        "there, back = dist.P2POp(dist.isend, t, 1 - rank), dist.P2POp(dist.irecv, t * 0, 1 - rank)\n"
        "works = dist.batch_isend_irecv([there, back])\n"
        "[work.wait() for work in works]\n",
    )
    told = {rank: [(op.op, op.peer, op.tag) for op in each if op.is_point_to_point] for rank, each in ops.items()}
    assert told == {
        0: [("send", 1, 7), ("send", 1, 0), ("recv", 1, 0)],
        1: [("recv", 0, 7), ("send", 0, 0), ("recv", 0, 0)],
    }


def test_a_group_is_known_by_its_members(runner: Runner) -> None:
    """Ranks of a subgroup are those of the world; each group counts its own calls."""
    ops = ops_of(
        runner,
        "pair = dist.new_group([0, 2])\n"
        "if rank != 1:\n"
        "    dist.all_reduce(t, group=pair)\n"
        "    dist.all_reduce(t, group=pair)\n",
        ranks=3,
    )
    found = [(op.group.ranks, op.seq) for op in ops[2] if op.op == "all_reduce"]
    assert found == [((0, 2), 1), ((0, 2), 2)]


def test_a_group_that_only_its_members_make_is_of_nobody_else(runner: Runner) -> None:
    """With use_local_synchronization each rank may make another group: nobody is blamed for it."""
    ops = ops_of(
        runner,
        "mine = dist.new_group([2 * (rank // 2), 2 * (rank // 2) + 1], use_local_synchronization=True)\n"
        "dist.all_reduce(t, group=mine)\n",
        ranks=4,
    )
    made = {rank: [op.group.ranks for op in mine if op.op == "new_group"] for rank, mine in ops.items()}
    assert made == {0: [(0, 1)], 1: [(0, 1)], 2: [(2, 3)], 3: [(2, 3)]}
    assert json.loads(runner("explain", "--json").out)["findings"] == []


def test_results_are_the_same_with_and_without(runner: Runner) -> None:
    """Bit for bit."""
    body = "torch.manual_seed(rank)\nx = torch.randn(100)\n"
    body += "for _ in range(5):\n    dist.all_reduce(x)\nprint(x.numpy().tobytes().hex())\n"
    runner.script(HEAD + body)
    assert runner("run", "-n", 2, "script.py").out == runner("run", "-n", 2, "--no-record", "script.py").out


def test_no_record_leaves_no_ring(runner: Runner) -> None:
    """And explain says so in one sentence."""
    runner.script(HEAD)
    assert runner("run", "-n", 2, "--no-record", "script.py").code == 0
    assert not (runner.latest() / "rings").exists()
    told = runner("explain")
    assert told.code == 2
    assert "has no rings, so there is nothing to explain" in told.err


def test_a_workers_ops_are_not_its_ranks(runner: Runner) -> None:
    """What a forked child, such as a DataLoader's worker, does is not written to its parent's ring."""
    ops = ops_of(
        runner,
        "import os\n"
        "from rollcall.record import recorder, ring_format\n"
        "from rollcall.record.hooks.sink import CallArgs\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    mark = recorder.current().enter(ring_format.OP['barrier'], None, CallArgs())\n"
        "    os._exit(0 if mark < 0 else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0\n",
    )
    assert [op.op for op in ops[0]] == ["init"]


def test_what_was_written_survives_a_kill(runner: Runner) -> None:
    """The op that a rank was killed in is in its ring, entered and not completed."""
    body = """
import os, time
from pathlib import Path
from rollcall.explain.load import load
pid = torch.tensor(os.getpid())
dist.broadcast(pid, src=0)
if rank == 0:
    dist.recv(t, src=1)
while load(Path(".rollcall/runs/latest").resolve()).ranks[0].ops[-1].op != "recv":
    time.sleep(0.01)
os.kill(pid.item(), 9)
time.sleep(60)
"""
    runner.script(HEAD + body)
    assert runner("run", "-n", 2, "script.py").code == 137
    run = load(runner.latest().resolve())
    assert [op.op for op in run.ranks[0].ops] == ["init", "broadcast", "recv"]
    assert not run.ranks[0].ops[-1].completed_ns


def test_the_json_has_its_keys(runner: Runner) -> None:
    """run, outcome, verdict, findings, waits; a healthy run has no finding."""
    ops_of(runner, "for _ in range(3):\n    dist.all_reduce(t)\n")
    told = json.loads(runner("explain", "--json").out)
    assert set(told) >= {"run", "outcome", "verdict", "findings", "waits"}
    assert (told["outcome"], told["verdict"], told["findings"]) == ("ok", None, [])
    assert [wait["rank"] for wait in told["waits"]] == [0, 1]


DDP = """
from torch.nn.parallel import DistributedDataParallel
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
del model
"""


def test_what_ddp_starts_in_cpp_is_recorded(runner: Runner) -> None:
    """Its all-reduces, with the bucket and the user's line, from their beginning to the end of backward."""
    ops = ops_of(runner, DDP)
    for rank in (0, 1):
        buckets = [op for op in ops[rank] if op.is_bucket]
        assert [(op.op, op.reduce, op.signature["splits"][:2]) for op in buckets] == [
            ("all_reduce", "SUM", ["bucket", 0])
        ] * 2
        assert all(op.completed_ns >= op.waited_ns >= op.issued_ns >= op.entered_ns > 0 for op in buckets)
        assert {str(op.site) for op in buckets} == {"script.py:10"}


def test_training_has_its_phases(runner: Runner) -> None:
    """Forward, backward and step by themselves, where there is a DDP module; others by `rollcall.phase`."""
    body = DDP + 'import rollcall\nwith rollcall.phase("evaluate"):\n    dist.all_reduce(t)\n'
    assert ops_of(runner, body)[0][-1].phase == "evaluate"
    phases = [op.phase for op in load(runner.latest().resolve()).ranks[0].events if op.phase and op.op != "sample"]
    assert phases == ["forward", "backward", "step"] * 2 + ["evaluate"]


FUNCTIONAL = """
import torch.distributed._functional_collectives as functional
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
print(functional.all_reduce(t, "sum", dist.group.WORLD) + 1)
print(distribute_tensor(torch.ones(4, 4), init_device_mesh("cpu", (2,)), [Shard(0)]).sum().full_tensor())
compiled = torch.compile(lambda x: functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1, backend="aot_eager")
print(compiled(t))
"""


def test_functional_collectives_are_recorded(runner: Runner) -> None:
    """By themselves, below DTensor, and in compiled programs: each once, and waited for when its result is used."""
    ops = ops_of(runner, FUNCTIONAL)
    for rank in (0, 1):
        seen = [(str(op.site), op.op) for op in ops[rank] if op.op == "all_reduce"]
        assert seen == [(f"script.py:{line}", "all_reduce") for line in (8, 9, 10)]
        assert all(op.completed_ns for op in ops[rank])


def test_sharded_modules_are_recorded(runner: Runner) -> None:
    """FSDP2 gathers parameters and scatters gradients."""
    body = (
        "from torch.distributed.fsdp import fully_shard\n"
        "from torch.distributed.tensor import init_device_mesh\n"
        "model = torch.nn.Linear(8, 8)\n"
        'fully_shard(model, mesh=init_device_mesh("cpu", (2,)))\n'
        "model(torch.ones(2, 8)).sum().backward()\n"
    )
    ops = ops_of(runner, body)
    assert {"all_gather", "reduce_scatter"} <= {op.op for op in ops[0]}


def test_a_rank_that_is_in_no_op_is_seen(runner: Runner) -> None:
    """On its line, once, from when to when; and whether it waits for its data."""
    body = "import queue, time\ndist.all_reduce(t)\ntime.sleep(0.5)\ntry:\n    queue.Queue().get(timeout=0.5)\n"
    ops_of(runner, body + "except queue.Empty:\n    pass\ndist.all_reduce(t)\n")
    run = load(runner.latest().resolve())
    samples = {str(op.site): op for op in run.ranks[0].events if op.op == "sample"}
    assert samples["script.py:7"].completed_ns - samples["script.py:7"].entered_ns > 0.2e9
    assert not samples["script.py:7"].waits_for_data
    assert samples["script.py:9"].waits_for_data


ELSEWHERE = """
import rollcall, torch, torch.distributed as dist
with rollcall.init(record=True) as world:
    dist.all_reduce(torch.ones(4), op=[dist.ReduceOp.SUM, dist.ReduceOp.MAX][world.rank])
"""


@pytest.mark.parametrize(
    "words", [["torchrun", "--standalone", "--nproc-per-node", "2"], ["rollcall", "run", "--start", "fresh", "-n", "2"]]
)
def test_recording_works_under_any_launcher(runner: Runner, words: list[str]) -> None:
    """By rollcall.init(record=True): explain and runs find it, and a silent bug is named."""
    runner.script(ELSEWHERE)
    command = [str(Path(sys.executable).with_name(words[0])), *words[1:], "script.py"]
    subprocess.run(command, cwd=runner.folder, env=runner.env, check=True, capture_output=True)
    told = json.loads(runner("explain", "--json").out)
    assert (told["outcome"], told["verdict"]["kind"]) == ("ok", "mismatched-reduce-op")
    assert "script.py" in runner("runs").out
