"""What is recorded of ops that Python calls."""

import torch
import torch.distributed as dist

from rollcall.explain.loading.load import load
from rollcall.explain.verdict import explain
from rollcall.record.hooks.arguments import METHODS
from tests.blame import blamed
from tests.record.recorded import HEAD, ops_of, run_recorded
from tests.rollcall_command import Runner

# Calls, their ops, and what is recorded of them.
CALLS: list[tuple[str, str, dict[str, object]]] = [
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
    ("dist.init_device_mesh('cpu', (2, 1))", "new_group", {}),
    ("with torch.inference_mode(): dist.all_reduce(torch.ones(4))", "all_reduce", {"reduce": "SUM"}),
]


def test_an_op_is_recorded_with_what_it_is_about(runner: Runner) -> None:
    """Op, root, reduce op, size and the user's own line; entered and completed on both ranks."""
    ops = ops_of(runner, "\n".join(call for call, *_ in CALLS) + "\n")
    for line, (call, name, facts) in enumerate(CALLS, 1 + HEAD.count("\n")):
        for rank in (0, 1):
            last = [op for op in ops[rank] if str(op.site) == f"script.py:{line}"][-1]
            found = {fact: getattr(last, fact) for fact in facts}
            assert (last.op, found) == (name, facts), call
            assert last.completed_ns >= last.entered_ns > 0, call


def test_sends_and_receives_know_their_partner_and_tag(runner: Runner) -> None:
    """Also through isend, irecv and batch_isend_irecv, and of a receive from any rank; each channel counts its own."""
    ops = ops_of(
        runner,
        "if rank == 0:\n"
        "    dist.send(t, dst=1, tag=7)\n"
        "    dist.send(t, dst=1, tag=7)\n"
        "else:\n"
        "    dist.recv(t, src=0, tag=7)\n"
        "    dist.recv(t, tag=7)\n"
        "there, back = dist.P2POp(dist.isend, t, 1 - rank), dist.P2POp(dist.irecv, t * 0, 1 - rank)\n"
        "works = dist.batch_isend_irecv([there, back])\n"
        "[work.wait() for work in works]\n",
    )
    found = {
        rank: [(op.op, op.peer, op.tag, op.seq) for op in each if op.is_point_to_point] for rank, each in ops.items()
    }
    assert found == {
        0: [("send", 1, 7, 1), ("send", 1, 7, 2), ("send", 1, 0, 1), ("recv", 1, 0, 1)],
        1: [("recv", 0, 7, 1), ("recv", 0, 7, 2), ("send", 0, 0, 1), ("recv", 0, 0, 1)],
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


def test_a_group_that_only_its_members_make_is_theirs_alone(runner: Runner) -> None:
    """With use_local_synchronization each rank may make another group: no rank is blamed for it."""
    ops = ops_of(
        runner,
        "mine = dist.new_group([2 * (rank // 2), 2 * (rank // 2) + 1], use_local_synchronization=True)\n"
        "dist.all_reduce(t, group=mine)\n"
        "dist.barrier()\n",  # a rank that ends while another one still connects to it fails that one
        ranks=4,
    )
    made = {rank: [op.group.ranks for op in mine if op.op == "new_group"] for rank, mine in ops.items()}
    assert made == {0: [(0, 1)], 1: [(0, 1)], 2: [(2, 3)], 3: [(2, 3)]}
    assert blamed(explain(runner.latest().resolve())) == []


def test_a_gather_into_one_tensor_is_a_gather() -> None:
    """torch 2.15 has it, for nccl alone: its root, and what each rank gives."""
    opts, given = dist.GatherOptions(), torch.ones(4)
    opts.rootRank = 1
    op, read = METHODS["gather_single"]
    call = read((None, torch.empty(8), given, opts), {})
    assert (op, call.peer, call.tensors) == ("gather", 1, (given,))


def test_the_end_of_all_groups_is_recorded(runner: Runner) -> None:
    """An event, not an op that ranks make together: one rank may do so long after the other. The end of one group of
    several is none."""
    body = "mine = dist.new_group([0, 1])\ndist.destroy_process_group(mine)\ndist.barrier()\n"
    run_recorded(runner, HEAD + body + "dist.destroy_process_group()\n")
    ranks = load(runner.latest()).ranks
    for rank in ranks.values():
        assert [event.op for event in rank.events if event.op != "sample"] == ["destroy", "exit"]
        assert rank.ops[-1].op == "barrier"
        assert rank.ops[-1].completed_ns <= rank.ended_ns
    assert blamed(explain(runner.latest())) == []


def test_parts_of_different_sizes_make_no_difference_between_ranks() -> None:
    """Each rank of a reduce_scatter receives the part that is its own."""
    _, read = METHODS["reduce_scatter"]
    parts = [torch.ones(2), torch.ones(3)]
    assert len({read(("group", [torch.empty(size)], [parts]), {}).splits for size in (2, 3)}) == 1
    same = [torch.ones(2), torch.ones(2)]
    assert len({read(("group", [torch.empty(size)], [same]), {}).splits for size in (2, 3)}) == 2
