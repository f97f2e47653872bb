"""The verdict is the finding from which the others follow. Each claim comes with a twin that stays innocent, or that
has another cause."""

import codecs
import linecache
import queue
import sysconfig
import threading
from dataclasses import replace
from typing import Any

import pytest

from rollcall.explain import source
from rollcall.explain.evidence import Evidence
from rollcall.explain.loading.load import Handled
from rollcall.explain.loading.table import Site
from rollcall.explain.verdict import Explanation, advice, explain_run, to_json
from rollcall.record import ring_format
from tests.report.rings import FILE, START_NS, FakeOp, run

ASYNC, WAITED, FAILED, BUCKET = ring_format.ASYNC, ring_format.WAITED, ring_format.FAILED, ring_format.BUCKET

PROGRAM = """\
def train():
    for step in range(100):
        batch = queue.get()
        loss = model(batch)
        loss.backward()
        optimizer.step()
        if rank == 0:
            dist.all_reduce(loss)
        if step % 10 == 0:
            saved = done.get()
        done.get()
    dist.barrier()
    dist.all_reduce(total)
"""
FORWARD, BACKWARD, METRIC, BARRIER, TOTAL = 4, 5, 8, 12, 13
PACKAGES = sysconfig.get_paths()["purelib"]


@pytest.fixture(autouse=True)
def program(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines of the program that all these ops come from."""
    lines = PROGRAM.splitlines(keepends=True)
    monkeypatch.setitem(linecache.cache, FILE, (len(PROGRAM), None, lines, FILE))


def explain(*ranks: list[FakeOp], outcome: str = "stopped", **facts: Any) -> Explanation:
    return explain_run(Evidence(run(ranks, outcome=outcome, **facts)))


def verdict(*ranks: list[FakeOp], outcome: str = "stopped", **facts: Any) -> tuple[str, tuple[int, ...]] | None:
    found = explain(*ranks, outcome=outcome, **facts).verdict
    return (found.kind, found.ranks) if found else None


def at(line: int, file: str = FILE) -> Site:
    return Site(file, line, "step<script>")


def steps(count: int, **facts: Any) -> list[FakeOp]:
    return [FakeOp("all_reduce", n, n * 10, n * 10 + 5, **facts) for n in range(1, count + 1)]


def ddp(count: int, is_last_open: bool = False) -> list[FakeOp]:
    """Forwards and backwards of a DDP module; the last one still waits for its bucket."""
    made = []
    for n in range(1, count + 1):
        end = 0 if is_last_open and n == count else n * 10 + 6
        made += [
            FakeOp("ddp_forward", 0, n * 10, n * 10 + 2, phase="forward", group="", line=FORWARD, size_bytes=1000),
            FakeOp("phase", 0, n * 10 + 3, end, phase="backward", group="", line=BACKWARD),
            FakeOp(
                "all_reduce", n, n * 10 + 4, end, waited_ms=n * 10 + 5, flags=ASYNC | WAITED | BUCKET,
                phase="backward", line=BACKWARD,
            ),
        ]  # fmt: skip
    return made


def accumulated(plan: str, is_last_open: bool = False) -> list[FakeOp]:
    """Forwards and backwards of a DDP module. `+` averages its gradients, `.` is in no_sync(), `!` has no backward."""
    made: list[FakeOp] = []
    for n, kind in enumerate(plan, 1):
        size_bytes = 1000 if kind == "+" else 0
        made.append(
            FakeOp("ddp_forward", 0, n * 10, n * 10 + 2, phase="forward", group="", line=FORWARD, size_bytes=size_bytes)
        )
        if kind != "!":
            made.append(FakeOp("phase", 0, n * 10 + 3, n * 10 + 6, phase="backward", group="", line=BACKWARD))
        if kind == "+":
            seq = plan[:n].count("+")
            made.append(
                FakeOp(
                    "all_reduce", seq, n * 10 + 4, n * 10 + 6, waited_ms=n * 10 + 5, flags=ASYNC | WAITED | BUCKET,
                    phase="backward", line=BACKWARD,
                )
            )  # fmt: skip
    return [*made[:-1], replace(made[-1], completed_ms=0)] if is_last_open else made


# A rank that is known to sit somewhere.


@pytest.mark.parametrize(
    "inside", ["", threading.__file__, codecs.__file__, f"{PACKAGES}/torch/_dynamo/output_graph.py"]
)
@pytest.mark.parametrize("is_idle", [True, False, None])
def test_a_rank_that_sits_before_its_forward_is_busy(inside: str, is_idle: bool | None) -> None:
    """It has had fewer batches only because it is asleep, in a lock, in a file or in a compile."""
    facts = {"stack": {1: (*([at(1, inside)] if inside else []), at(3))}, "is_idle": {1: is_idle}}
    found = explain(ddp(6, True), ddp(5), ddp(6, True), **facts)
    assert found.verdict is not None
    assert (found.verdict.kind, found.verdict.ranks, found.verdict.sites[0]) == ("busy-rank", (1,), at(3))
    assert [each.kind for each in found.findings] == ["busy-rank"]
    assert ("without using the processor" in found.verdict.message) == (is_idle is True)
    assert found.verdict.evidence.get("computing", []) == ([1] if is_idle is False else [])


def test_a_rank_that_waits_for_its_loader_before_its_forward_is_an_input_stall() -> None:
    """Its stack goes through the loader."""
    stack = {1: (Site("/x/torch/utils/data/dataloader.py", 1, "_next"), at(2))}
    assert verdict(ddp(6, True), ddp(5), ddp(6, True), stack=stack) == ("input-stall", (1,))


def test_a_rank_without_a_stack_sits_where_it_was_sampled() -> None:
    """The sampler saw it after its last op."""
    asleep = [*ddp(5), FakeOp("sample", 0, 70, 90, group="", line=3)]
    assert verdict(ddp(6, True), asleep, ddp(6, True)) == ("busy-rank", (1,))


def test_a_rank_that_is_past_its_loop_had_fewer_batches() -> None:
    """It is in a call behind the loop, or has come to its end."""
    behind = [*ddp(5), FakeOp("barrier", 6, 70, line=BARRIER)]
    found = explain(ddp(6, True), behind, ddp(6, True)).findings
    assert [(finding.kind, finding.ranks) for finding in found] == [("ddp-uneven-inputs", (1,))]  # and nothing twice
    assert verdict(ddp(6, True), ddp(5), ddp(5), exit_code={1: 0, 2: 0}) == ("ddp-uneven-inputs", (0,))
    exits = {"exit_code": {1: 0}, "exit_site": {1: at(3)}}  # in the middle of the loop
    assert verdict(ddp(6, True), ddp(5), ddp(6, True), **exits) == ("rank-exited-early", (1,))


def test_forwards_on_another_line_are_not_counted() -> None:
    """Ranks joined with uneven inputs there: only rank 1 has fewer batches on the line where the others wait."""
    joined = [FakeOp("ddp_forward", 0, n, n + 0.5, phase="forward", group="", line=METRIC) for n in range(1, 4)]
    ranks = [[*joined[:1], *ddp(6, True)], [*joined[:2], *ddp(5)], [*joined, *ddp(6, True)]]
    assert verdict(*ranks, exit_code={1: 0}) == ("ddp-uneven-inputs", (1,))


def test_ranks_that_the_launcher_ended_may_have_had_more_batches() -> None:
    """Rank 0 failed in a forward since rank 2 had ended; ranks 1 and 3 were still in their backward, and were ended.
    Where no rank came to its end, nobody is known to have had fewer."""
    failed = [
        *ddp(5),
        FakeOp("ddp_forward", 0, 60, 70, phase="forward", group="", line=FORWARD, size_bytes=1000),
        FakeOp("exception", 0, 71, group="", line=FORWARD),
    ]
    facts = {"outcome": "failed", "error": {0: "RuntimeError: closed"}, "error_site": {0: at(FORWARD)}}
    ended = {0: START_NS + 71_000_000, 2: START_NS + 65_000_000}
    found = explain(failed, ddp(5), ddp(5), ddp(5), exit_code={0: 1, 2: 0}, ended_ns=ended, **facts)
    assert found.verdict is not None
    assert (found.verdict.kind, found.verdict.ranks) == ("ddp-uneven-inputs", (2,))
    assert "rank 0: 6; rank 2: 5" in found.verdict.message
    assert "ranks 1,3 may have had more" in found.verdict.message
    assert verdict(failed, ddp(5), ddp(5), ddp(5), exit_code={0: 1}, ended_ns={0: ended[0]}, **facts) != (
        "ddp-uneven-inputs",
        (2,),
    )


@pytest.mark.parametrize(("plan", "lines"), [("..+", {FORWARD}), ("!.+", {FORWARD, BACKWARD})])
def test_a_rank_that_left_out_a_backward_explains_who_waits_for_it_in_a_forward(plan: str, lines: set[int]) -> None:
    """Rank 0 did not average its gradients in its second step, or made no backward in its first: its only average met
    the one that the others made before it. DDP's reducer waits for it in their next forward, in C++. It has made as
    many forwards as they."""
    raised = [*accumulated(".+!"), FakeOp("exception", 0, 60, group="", line=FORWARD)]
    others = (1, 2, 3)
    facts = {
        "outcome": "failed",
        "exit_code": {0: 0, **dict.fromkeys(others, 1)},
        "error": dict.fromkeys(others, "RuntimeError: closed"),
        "error_site": dict.fromkeys(others, at(FORWARD)),
        "ended_ns": {0: START_NS + 50_000_000, **dict.fromkeys(others, START_NS + 60_000_000)},
    }
    found = explain(accumulated(plan), raised, raised, raised, **facts)
    assert [(each.kind, each.ranks) for each in found.findings] == [("missing-rank", (0,))]
    assert {site.line for site in found.findings[0].sites} == lines
    # Its twin has made that forward, too: it has no part in their error.
    assert verdict(accumulated(".+."), raised, raised, raised, **facts) == ("rank-failed", (1, 2, 3))


def test_a_rank_that_left_out_a_backward_and_is_past_its_loop_explains_a_hang_in_a_forward() -> None:
    """It waits behind the loop. Its twin is still in the loop, and may come."""
    waiting = accumulated(".+!", is_last_open=True)
    behind = [*accumulated("..+"), FakeOp("barrier", 2, 70, line=BARRIER)]
    found = explain(behind, waiting, waiting, stack={1: (at(FORWARD),), 2: (at(FORWARD),)})
    assert [(each.kind, each.ranks) for each in found.findings] == [("missing-rank", (0,))]
    assert verdict(accumulated("..+"), waiting, waiting, stack={0: (at(3),)}) != ("missing-rank", (0,))


def test_ranks_that_accumulate_gradients_in_another_order_are_not_blamed() -> None:
    """They average as often, and all of them came to their end."""
    ends = {"outcome": "ok", "exit_code": dict.fromkeys(range(3), 0)}
    assert verdict(accumulated("..+"), accumulated(".+."), accumulated(".+."), **ends) is None


def test_a_rank_that_exits_before_its_own_async_op_is_over_left_the_others_in_it() -> None:
    """If it came to its end without sys.exit, the call is over for it."""
    issued = FakeOp("all_reduce", 1, 10, issued_ms=11, flags=ASYNC, line=METRIC)
    failed = [replace(issued, flags=ASYNC | FAILED), FakeOp("exception", 0, 60, group="", line=BACKWARD)]
    facts = {
        "outcome": "failed",
        "exit_code": {0: 1, 1: 0, 2: 1},
        "error": dict.fromkeys((0, 2), "RuntimeError: closed"),
        "error_site": dict.fromkeys((0, 2), at(BACKWARD)),
        "ended_ns": {0: START_NS + 60_000_000, 1: START_NS + 20_000_000, 2: START_NS + 61_000_000},
    }
    assert verdict(failed, [issued], failed, exit_site={1: at(BACKWARD)}, **facts) == ("rank-exited-early", (1,))
    assert verdict(failed, [issued], failed, **facts) is None


def test_ranks_of_a_run_that_goes_on_had_fewer_batches_only_if_they_are_stuck() -> None:
    """With join(), ranks without batches make calls behind the loop, while the others are in a backward."""
    made = run([ddp(6, True), [*ddp(5), FakeOp("all_reduce", 6, 70, line=BARRIER)]], outcome="running")
    for ms, is_named in ((80, False), (80 + 1000 * (made.hang_after_s + 1), True)):
        found = explain_run(Evidence(replace(made, cut_ns=START_NS + int(ms * 1e6)))).findings
        assert any(finding.kind == "ddp-uneven-inputs" for finding in found) == is_named


def test_a_call_that_one_rank_makes_between_two_loops_is_no_missing_batch() -> None:
    """The others are in the second loop, where that rank has made no forward yet."""
    second_loop = 20
    others = [replace(op, line=second_loop) if op.entered_ms >= 60 else op for op in ddp(6, True)]
    saving = [*ddp(5), FakeOp("all_gather", 6, 70, line=BARRIER, shape=(1,))]
    assert verdict(saving, others, others) == ("missing-rank", (0,))


def test_a_call_that_one_rank_makes_within_the_loop_is_no_missing_batch() -> None:
    """The others make their next forward instead of it."""
    metric = [*ddp(5), FakeOp("all_reduce", 6, 70, line=METRIC, shape=(1,))]
    assert verdict(metric, ddp(6, True), ddp(6, True)) == ("missing-rank", (0,))


def test_unused_parameters_are_told_with_the_forward_that_did_not_use_them() -> None:
    """Their backward averages 1,000 gradients of 2,000. Its twin has no more."""
    short = [replace(op, size_bytes=2000) if op.op == "ddp_forward" else op for op in ddp(2)]
    found = explain(short, short, outcome="ok").verdict
    assert found is not None
    assert (found.kind, {site.line for site in found.sites}) == ("ddp-unused-parameter", {BACKWARD, FORWARD})
    assert verdict(ddp(2), ddp(2), outcome="ok") is None


def test_functional_collectives_beside_ddp_are_no_gradients() -> None:
    """A functional all_reduce in each backward: it is not counted with the buckets."""
    for made, expected in ((2000, ("ddp-unused-parameter", (0, 1))), (1000, None)):
        ops = [replace(op, size_bytes=made) if op.op == "ddp_forward" else op for op in ddp(2)]
        ops += [
            FakeOp(
                "all_reduce", n, n * 10 - 21, n * 10 - 20, waited_ms=n * 10 - 21, flags=ASYNC | WAITED,
                phase="backward", line=BACKWARD, group="functional",
            )
            for n in (3, 4)
        ]  # fmt: skip
        assert verdict(ops, ops, outcome="ok") == expected


def test_the_rank_at_the_end_of_a_chain_is_named() -> None:
    """Ranks 0 and 1 wait for rank 2, which waits for rank 3, which sleeps."""
    barrier, recv = [FakeOp("barrier", 1, 20)], [FakeOp("recv", 1, 10, peer=3)]
    found = explain(barrier, barrier, recv, steps(0), stack={3: (at(3),)})
    assert [(each.kind, each.ranks) for each in found.findings] == [("busy-rank", (3,))]


def test_a_rank_that_has_passed_a_call_did_not_make_it() -> None:
    """It sits behind it, and no loop leads back."""
    waiting = [FakeOp("barrier", 1, 20, line=BARRIER)]
    assert verdict(waiting, waiting, [], stack={2: (at(TOTAL),)}) == ("missing-rank", (2,))
    assert verdict(waiting, waiting, [], stack={2: (at(3),)}) == ("busy-rank", (2,))


# What stopped nobody.


def test_advice_is_never_the_verdict_of_a_run_that_failed() -> None:
    """Ranks 2 and 3 call on a group that they are not in, which torch ignores; then rank 3 fails."""
    stranger = [FakeOp("all_reduce", 1, 1, 2, group=""), *steps(3)]
    error = {"error": {3: "ValueError: no data"}, "error_site": {3: at(3)}, "exit_code": {3: 1}}
    found = explain(steps(3), steps(3), stranger, stranger, outcome="failed", **error)
    assert [(each.kind, each.ranks) for each in found.findings] == [("rank-failed", (3,)), ("non-member-call", (2, 3))]
    assert [each["advice"] for each in to_json(found)["findings"]] == [False, True]
    alone = explain(steps(3), stranger, outcome="stopped")
    assert (alone.verdict, [each.kind for each in alone.findings]) == (None, ["non-member-call"])


def test_of_a_run_that_ended_well_advice_is_all_there_is_to_say() -> None:
    """So it is the verdict, and marked."""
    found = explain(steps(1), [*steps(1), FakeOp("barrier", 1, 30, 31, group="")], outcome="ok")
    assert found.verdict is not None
    assert to_json(found)["verdict"]["advice"] is True


def test_who_fails_on_what_a_call_of_a_non_member_returned_fails_for_that() -> None:
    """An async one returns None, which has no wait()."""
    stranger = [*steps(1), FakeOp("broadcast", 1, 30, 31, group="")]
    error = {"error": {1: "AttributeError: 'NoneType' object has no attribute 'wait'"}, "exit_code": {1: 1}}
    ended = {"ended_ns": {1: START_NS + 10**8}}
    assert verdict(steps(1), stranger, outcome="failed", **error, **ended) == ("non-member-call", (1,))


def test_a_handle_that_nobody_waited_for_does_not_explain_a_failure() -> None:
    """Its rank ended well, and another failed."""
    work = [FakeOp("all_reduce", 1, 0, flags=ASYNC, line=5)]
    error = {"error": {1: "KeyError: 1"}, "exit_code": {0: 0, 1: 1}, "ended_ns": {1: START_NS + 10**9}}
    assert verdict(work, work, outcome="failed", **error) == ("rank-failed", (1,))


# What came first.


def test_a_wrong_result_does_not_explain_an_error_elsewhere() -> None:
    """A reduce op that differs stops nobody; the rank that raised did."""
    error = {"error": {2: "KeyError: 1"}, "error_site": {2: at(3)}, "exit_code": {2: 1}}
    mixed = [FakeOp("all_reduce", 1, 10, 15, reduce="MAX"), *steps(3)[1:]]
    assert verdict(steps(3), mixed, steps(3), outcome="failed", **error) == ("rank-failed", (2,))
    assert verdict(steps(3), mixed, steps(3), outcome="ok") == ("mismatched-reduce-op", (1,))


def test_what_changes_the_bytes_explains_what_fails_later_in_its_group() -> None:
    """The rest of a message is taken for the next one. With as many bytes, the next call is not disturbed."""
    waiting = [*steps(3), FakeOp("barrier", 4, 50)]
    shorter = [steps(3)[0], FakeOp("all_reduce", 2, 20, 25, shape=(500,), size_bytes=2000), *waiting[2:]]
    other_type = [steps(3)[0], FakeOp("all_reduce", 2, 20, 25, dtype="int32"), *waiting[2:]]
    assert verdict(waiting, shorter, steps(3)) == ("mismatched-shape", (1,))
    assert verdict(waiting, other_type, steps(3)) == ("missing-rank", (2,))


def test_an_error_on_the_line_of_a_call_that_does_not_match_comes_from_it() -> None:
    """torch cannot take what the others sent apart. On the same line in a later turn, it is another error."""
    objects = [FakeOp("all_gather", 1, 0, 5, objects=3, line=9), FakeOp("all_gather", 2, 6, 9, line=9)]
    short = [replace(objects[0], objects=2), objects[1]]
    facts = {
        "error": {0: "IndexError: 2"},
        "error_site": {0: at(9)},
        "exit_code": {0: 1},
        "ended_ns": {0: START_NS + 10**8},
    }
    assert verdict(short, objects, objects, outcome="failed", **facts) == ("mismatched-splits", (0,))
    later = [FakeOp("all_reduce", n, n * 10, n * 10 + 5, line=9) for n in range(3, 9)]
    found = verdict([*short, *later], [*objects, *later], [*objects, *later], outcome="failed", **facts)
    assert found == ("rank-failed", (0,))


def test_ranks_that_gloo_aborts_in_a_call_that_does_not_match_died_of_it() -> None:
    """One rank's buffer is larger than the others expect. They are killed before it comes to its next line."""
    even = ("single", (), (), (16,))
    ops = [[*steps(2), FakeOp("all_to_all", 3, 30 + rank, shape=(16,), splits=even, line=9)] for rank in range(4)]
    ops[2][-1] = replace(ops[2][-1], entered_ms=50, shape=(32,), splits=("single", (), (), (32,)))
    gone = dict.fromkeys((0, 1, 3), START_NS + 60000000)
    facts = {"exit_code": dict.fromkeys(gone, -6), "gone_ns": gone}
    assert verdict(*ops, outcome="failed", **facts) == ("mismatched-shape", (2,))
    # Killed before anything differed, it is the death that counts.
    facts = {"exit_code": {0: -9}, "gone_ns": {0: START_NS + 35_000_000}}
    assert verdict(*ops, outcome="failed", **facts) == ("rank-killed", (0,))


def test_a_receive_from_a_rank_that_died_waits_for_nothing_else() -> None:
    """Its death is told, not that it does not send."""
    recv = [FakeOp("recv", 1, 0, peer=1, flags=FAILED, issued_ms=1)]
    error = {"error": {0: "RuntimeError: closed", 1: "KeyError: 1"}, "exit_code": {0: 1, 1: 1}}
    ended = {"ended_ns": {0: START_NS + 10**9, 1: START_NS + 10**8}}
    found = explain(recv, [], outcome="failed", **error, **ended)
    assert [(each.kind, each.ranks) for each in found.findings] == [("rank-failed", (1,))]
    assert verdict([FakeOp("recv", 1, 0, peer=1)], [], exit_code={1: 0}) == ("unmatched-recv", (0,))


def test_deaths_are_listed_by_cause() -> None:
    """Also where the cause was noticed a moment later."""
    broken = [*steps(1), FakeOp("all_reduce", 2, 30, flags=FAILED, issued_ms=31)]
    found = explain(
        broken, steps(1), outcome="failed",
        error={0: "RuntimeError: closed", 1: "KeyError: 1"}, exit_code={0: 1, 1: 1},
        ended_ns={0: START_NS + 2 * 10**9, 1: START_NS + 10**9}, died_ns={0: 100, 1: 200},
    )  # fmt: skip
    assert [death.rank for death in found.deaths] == [1, 0]


def test_a_barrier_that_gave_up_names_who_is_missing() -> None:
    """Who raised is not who did not come."""
    gave_up = [*steps(2), FakeOp("barrier", 3, 40, flags=FAILED)]
    error = {"error": {0: "RuntimeError: timed out"}, "exit_code": {0: 1}, "ended_ns": {0: START_NS + 10**9}}
    assert verdict(gave_up, gave_up, steps(2), outcome="failed", **error) == ("missing-rank", (2,))
    # An op that fails for its own arguments is its rank's own failure.
    bad = [*steps(2), FakeOp("all_reduce", 3, 40, flags=FAILED)]
    assert verdict(bad, steps(2), steps(2), outcome="failed", **error) == ("rank-failed", (0,))


def test_a_rank_that_left_the_loop_is_not_told_to_use_another_dtype() -> None:
    """Its next call is another one, and of another dtype."""
    left = [*steps(3, line=METRIC), FakeOp("all_reduce", 4, 60, line=TOTAL, dtype="int64")]
    inside = [*steps(3, line=METRIC), FakeOp("all_reduce", 4, 60, line=METRIC)]
    assert verdict(inside, left, inside) == ("missing-rank", (1,))
    other = [*steps(3, line=METRIC), FakeOp("all_reduce", 4, 60, line=METRIC, dtype="int64")]
    assert verdict(inside, other, inside) == ("mismatched-dtype", (1,))


@pytest.mark.parametrize(
    ("dtype", "expected"), [("int64", ("missing-rank", (1,))), ("float16", ("mismatched-dtype", (1,)))]
)
def test_a_rank_that_left_out_an_op_of_a_framework(dtype: str, expected: tuple[str, tuple[int, ...]]) -> None:
    """All ops of a framework have the same line of the program. Rank 1 comes early to the int64 op of the last turn.
    Its twin makes an op of a dtype that no turn has."""
    dtypes = ("float32", "float32", "int64") * 4
    turns = [
        FakeOp("all_reduce", n, n * 10, n * 10 + 5 if n < 11 else 0, line=METRIC, dtype=each)
        for n, each in enumerate(dtypes[:11], 1)
    ]
    early = [*turns[:10], replace(turns[10], dtype=dtype)]
    assert verdict(turns, early, turns) == expected


def test_a_group_that_only_its_members_make_is_incomplete() -> None:
    """The others are in the next new_group, on another line."""
    members = [FakeOp("new_group", 1, 0, group="0", line=3, splits=((0, 1),)), FakeOp("new_group", 2, 9, line=5)]
    others = [FakeOp("new_group", 1, 0, group="0", line=5, splits=((0, 1, 2, 3),))]
    found = verdict(members, members, others, others)
    assert found is not None
    assert found[0] == "group-incomplete"
    # What fails in groups that were made in another order, fails for that.
    made = [FakeOp("new_group", n, n, n + 1, line=3, splits=(pair,)) for n, pair in ((1, (0, 1)), (2, (2, 3)))]
    other = [
        replace(made[1], seq=1, entered_ms=1, completed_ms=2),
        replace(made[0], seq=2, entered_ms=2, completed_ms=3),
    ]
    fails = FakeOp("all_reduce", 1, 9, flags=FAILED, group="pair")
    facts = {"error": {3: "RuntimeError: reset"}, "exit_code": {3: 1}, "ended_ns": {3: START_NS + 10**8}}
    found = verdict(made, made, made, [*other, fails], outcome="failed", groups={"pair": [2, 3]}, **facts)
    assert found is not None
    assert found[0] in ("group-incomplete", "order-swap")


def test_a_rank_that_exits_from_a_thread_while_it_is_in_an_op() -> None:
    """It has come to the call, and is gone nevertheless. With a code, it has failed."""
    waiting = [*steps(2), FakeOp("all_reduce", 3, 40)]
    site = {"exit_site": {1: at(3)}, "ended_ns": {1: START_NS + 10**8}}
    assert verdict(waiting, waiting, waiting, exit_code={1: 0}, **site) == ("rank-exited-early", (1,))
    assert verdict(waiting, waiting, waiting, exit_code={1: 3}, outcome="failed", **site) == ("rank-exited-early", (1,))
    assert verdict(steps(2), steps(2), steps(2), exit_code={0: 0, 1: 0, 2: 0}, outcome="ok", **site) is None


# What must agree, and what need not.


def test_only_the_root_has_a_list_of_objects() -> None:
    """gather_object and scatter_object_list as torch's documentation shows them; unlike all_gather_object."""
    root, other = [FakeOp("all_gather", 1, 0, 5, objects=3)], [FakeOp("all_gather", 1, 0, 5)]
    assert verdict(root, other, other, outcome="ok") is None
    short = [FakeOp("all_gather", 1, 0, 5, objects=2)]
    assert verdict(root, root, short, outcome="ok") == ("mismatched-splits", (2,))


def test_nccl_gathers_tensors_of_different_sizes() -> None:
    """If all ranks have room for just these."""
    rooms = (((2,), (3,), (4,)),)
    ops = [[FakeOp("all_gather", 1, 0, 5, shape=(2 + n,), splits=rooms, device="cuda")] for n in range(3)]
    assert verdict(*ops, outcome="ok") is None
    ops[1][0] = replace(ops[1][0], shape=(9,))
    assert verdict(*ops, outcome="ok") == ("mismatched-shape", (0, 1, 2))


def test_nccl_ignores_tags() -> None:
    """gloo does not."""
    for device, found in (("cuda", None), ("cpu", ("tag-mismatch", (0, 1)))):
        send = [FakeOp("send", 1, 0, 5, peer=1, tag=1, device=device)]
        recv = [FakeOp("recv", 1, 0, 5 * (device == "cuda"), peer=0, tag=2, device=device)]
        assert verdict(send, recv, outcome="ok" if device == "cuda" else "stopped") == found


def test_sends_that_wait_for_each_other_are_a_deadlock() -> None:
    """Not a message to the wrong rank: each receiver would come to its receive later."""
    ranks = [[FakeOp("send", 1, 9 - rank, peer=(rank + 1) % 3)] for rank in range(3)]
    assert [each.kind for each in explain(*ranks).findings] == ["p2p-deadlock"]
    assert verdict(*ranks) == ("p2p-deadlock", (0, 1, 2))
    # A rank that waits for one of them does not make it a message to the wrong rank.
    pair = [[FakeOp("send", 1, rank, peer=1 - rank)] for rank in range(2)]
    assert verdict(*pair, [FakeOp("recv", 1, 5, peer=0)]) == ("p2p-deadlock", (0, 1))
    # Once it has gone, it was meant for another.
    assert verdict([FakeOp("send", 1, 0, 5, peer=2)], [FakeOp("recv", 1, 5, peer=0)], []) == ("wrong-peer", (0,))


def test_all_circles_of_a_line_are_told_and_what_to_change_if_nobody_sends() -> None:
    """The pairs of a halo exchange: each is a circle of its own."""
    for op, change in (("send", "let one side receive"), ("recv", "let one of them send first")):
        found = explain(*[[FakeOp(op, 1, rank, peer=(rank + 2) % 4)] for rank in range(4)]).verdict
        assert found is not None
        assert (found.kind, found.ranks) == ("p2p-deadlock", (0, 1, 2, 3))
        assert advice(found).startswith(change)


@pytest.mark.parametrize(("is_senders", "rank"), [(True, 0), (False, 2)])
def test_the_side_with_the_wrong_tag_is_named(is_senders: bool, rank: int) -> None:
    """By what the other ranks do in the same turn on the same lines, where every turn has its own tag."""
    sends, recvs = [], {1: [], 2: []}  # type: ignore[var-annotated]
    for turn in range(4):
        for peer in (1, 2):
            is_bad = turn == 3 and peer == 2
            tag = turn + 10 * (is_bad and is_senders)
            sends.append(FakeOp("send", len(sends) + 1, turn * 10, turn * 10 + 1, peer=peer, tag=tag, line=3))
            tag = turn + 10 * (is_bad and not is_senders)
            end = 0 if is_bad else turn * 10 + 2
            recvs[peer].append(FakeOp("recv", turn + 1, turn * 10, end, peer=0, tag=tag, line=4))
    assert verdict(sends, recvs[1], recvs[2]) == ("tag-mismatch", (rank,))


def test_threads_of_autograd_do_not_disturb_the_order() -> None:
    """Ranks make the call on different lines, from whatever thread; unless one rank makes both calls, from two."""
    ranks = [
        [
            *steps(2),
            FakeOp("all_reduce", 3, 40, 45, line=METRIC + rank, thread=1),
            FakeOp("barrier", 4, 50, 55),
        ]
        for rank in range(2)
    ]
    assert verdict(*ranks, outcome="ok") is None
    one, other = FakeOp("all_reduce", 3, 40, 45, line=3), FakeOp("all_reduce", 4, 41, 45, line=5, thread=1)
    swapped = [replace(other, seq=3), replace(one, seq=4)]
    assert verdict([*steps(2), one, other], [*steps(2), *swapped], outcome="ok") == ("concurrent-calls", (0, 1))


# Who is slow.


@pytest.mark.parametrize("slow", [(5,), (2, 5)])
def test_all_slow_ranks_are_named(slow: tuple[int, ...]) -> None:
    """Two of eight that are late alike, and no third."""
    ranks = [
        [
            FakeOp("all_reduce", n, n * 100 + (60 + (n * rank) % 3 if rank in slow else rank % 3), n * 100 + 70)
            for n in range(1, 31)
        ]
        for rank in range(8)
    ]
    assert verdict(*ranks, outcome="ok") == ("straggler", slow)


@pytest.mark.parametrize(("line", "kind"), [(3, "input-stall"), (10, "busy-rank"), (11, "busy-rank")])
def test_only_what_is_taken_in_every_step_is_input(line: int, kind: str) -> None:
    """From a thread of its own that writes checkpoints, a rank takes something now and then, or only waits."""
    waiting = [*steps(2), FakeOp("all_reduce", 3, 40)]
    stack = {1: (Site(queue.__file__, 180, "get"), at(line))}
    assert verdict(waiting, steps(2), waiting, stack=stack) == (kind, (1,))


def test_an_error_that_the_program_has_dealt_with_is_no_cause() -> None:
    """A barrier with a timeout, which one rank skips, and whose error the others catch: all end well. Its twin does
    not."""
    gave_up = [*steps(2), FakeOp("barrier", 3, 40, flags=FAILED)]
    assert explain(gave_up, steps(2), outcome="ok", exit_code={0: 0, 1: 0}).findings == []
    failed = explain(gave_up, steps(2), outcome="failed", exit_code={0: 1, 1: 0}, error={0: "RuntimeError: timeout"})
    assert failed.verdict is not None
    assert failed.verdict.ranks == (1,)


def test_a_rank_that_makes_a_call_more_is_the_odd_one() -> None:
    """The others have come to the end of the program. Of two ranks, or where the others left by sys.exit, they are."""
    more = [*steps(2), FakeOp("barrier", 3, 40)]
    assert verdict(more, steps(2), steps(2), exit_code={1: 0, 2: 0}) == ("missing-rank", (0,))
    left = {"exit_code": {1: 0, 2: 0}, "exit_site": {1: Site("train.py", 9, "main"), 2: Site("train.py", 9, "main")}}
    assert verdict(more, steps(2), steps(2), **left) == ("rank-exited-early", (1, 2))


def handling(*ranks: list[FakeOp], error_of: int) -> tuple[str, tuple[int, ...]] | None:
    """The verdict if a rank handles an error in its last op."""
    found = run(ranks, outcome="stopped")
    last = found.ranks[error_of].last
    assert last is not None
    handled = Handled("ValueError: bad sample", at(FORWARD), last.row)
    told = replace(found, ranks=found.ranks | {error_of: replace(found.ranks[error_of], handled=handled)})
    finding = explain_run(Evidence(told)).verdict
    return (finding.kind, finding.ranks) if finding else None


def test_a_rank_that_waits_in_a_finally_has_failed() -> None:
    """Its barrier meets another op of the others, which came first; of another group, or the same."""
    others = [*steps(3), FakeOp("all_reduce", 4, 100, 0, line=METRIC)]
    assert handling(others, others, [*steps(3), FakeOp("barrier", 4, 200, 0, line=BARRIER)], error_of=2) == (
        "rank-failed",
        (2,),
    )


def test_an_error_that_a_rank_handles_says_nothing_if_the_others_do_not_wait_for_it() -> None:
    """It communicates in an `except`, and waits for a rank that is busy."""
    waits = [*steps(3), FakeOp("all_reduce", 4, 100, 0, line=METRIC)]
    is_busy = [*steps(3), FakeOp("sample", 0, 90, 95, line=FORWARD)]
    assert handling(waits, waits, is_busy, error_of=0) == ("busy-rank", (2,))


def test_the_break_is_shown_by_which_the_others_left_two_loops() -> None:
    lines = ["for epoch in all:", "    for x in batches:", "        model(x)", "    if bad:", "        break", "end()"]
    linecache.cache["two.py"] = (0, None, [f"{line}\n" for line in lines], "two.py")
    inner, past = Site("two.py", 3, "<module>"), Site("two.py", 6, "<module>")
    assert source.ways_out_of_loop(past, inner) == (Site("two.py", 5, "<module>"),)
    assert source.ways_out_of_loop(Site("two.py", 4, "<module>"), inner) == ()
    # The inner loop may be in a function of its own.
    train = ["def train():", "    for x in batches:", "        model(x)", "for epoch in all:", "    train()"]
    lines = [*train, *lines[3:]]
    linecache.cache["deep.py"] = (0, None, [f"{line}\n" for line in lines], "deep.py")
    inner, past = Site("deep.py", 3, "train", (Site("deep.py", 5, "<module>"),)), Site("deep.py", 8, "<module>")
    assert source.ways_out_of_loop(past, inner) == (Site("deep.py", 7, "<module>"),)
    assert source.ways_out_of_loop(Site("deep.py", 6, "<module>"), inner) == ()


@pytest.mark.parametrize(
    ("condition", "is_chosen"),
    [
        ("if dist.get_rank() == 0: callback()", True),
        ("if self.is_main_process: callback()", True),
        ("if world_size > 1: callback()", False),
        ("callback()", False),
    ],
)
def test_a_call_in_a_helper_that_asks_for_the_rank_may_be_passed_by_the_others(condition: str, is_chosen: bool) -> None:
    """As in a callback with `@rank_zero_only`. What holds on all ranks alike says nothing."""
    train = ["def after_epoch():", f"    {condition}", "for epoch in all:", "    train()", "    after_epoch()"]
    linecache.cache["helper.py"] = (0, None, [f"{line}\n" for line in train], "helper.py")
    mine = Site("helper.py", 2, "after_epoch", (Site("helper.py", 5, "<module>"),))
    assert source.is_chosen_in_loop(mine, Site("helper.py", 4, "<module>")) == is_chosen


def test_a_helper_that_returns_on_other_ranks_may_be_passed_by_them() -> None:
    helper = ["def save():", "    if rank != 0:", "        return", "    gather()"]
    lines = [*helper, "while True:", "    train()", "    save()"]
    linecache.cache["guard.py"] = (0, None, [f"{line}\n" for line in lines], "guard.py")
    mine = Site("guard.py", 4, "save", (Site("guard.py", 7, "<module>"),))
    assert source.is_chosen_in_loop(mine, Site("guard.py", 6, "<module>"))


def test_a_receive_that_gave_up_and_was_handled_is_no_cause() -> None:
    """A program looks with a short time limit whether something has come. Its rank ends well, or goes on and waits
    elsewhere; its twin ends there."""
    look = FakeOp("recv", 1, 0, peer=1, flags=FAILED, issued_ms=1, group="probe")
    groups = {"probe": [0, 1]}
    ended = {"exit_code": {0: 0, 1: 0}, "groups": groups}
    assert explain([look, *steps(2)], steps(2), outcome="ok", **ended).findings == []
    assert explain([look], [], outcome="ok", **ended).findings == []
    waits = [look, *steps(2), FakeOp("all_reduce", 3, 40)]
    assert verdict(waits, steps(2), groups=groups) == ("missing-rank", (1,))
    failed = {"exit_code": {0: 1, 1: 0}, "error": {0: "RuntimeError: timeout"}, "groups": groups}
    assert verdict([*steps(2), look], steps(2), outcome="failed", **failed) == ("unmatched-recv", (0,))
    # An async receive fails in its wait, after what was made meanwhile.
    listens = replace(look, flags=ASYNC | FAILED, waited_ms=50)
    assert verdict([listens, *steps(2)], steps(2), outcome="failed", **failed) == ("unmatched-recv", (0,))


def test_another_shape_of_the_mesh_on_one_rank_is_an_incomplete_group() -> None:
    """Rank 1 makes groups of one rank where the others make pairs, and rank 0 waits for it then: none is busy. With the
    same shape on all ranks, who is in no op is."""

    def mesh(*members: tuple[int, ...]) -> list[FakeOp]:
        return [FakeOp("new_group", n, n, n + 0.5, line=3, splits=(each,)) for n, each in enumerate(members, 1)]

    pairs = mesh((0, 1), (2, 3))
    wait = FakeOp("all_reduce", 1, 9, group="low")
    groups = {"low": [0, 1], "high": [2, 3]}
    others = [[*pairs, wait], [*pairs, replace(wait, group="high", completed_ms=10)]]
    stack = {"groups": groups, "stack": {1: (at(METRIC),), 2: (at(METRIC),), 3: (at(METRIC),)}}
    alone = mesh((0,), (1,))
    assert verdict(others[0], alone, others[1], others[1], **stack) == ("group-incomplete", (1,))
    assert verdict(others[0], pairs, others[1], others[1], **stack) == ("busy-rank", (1,))
