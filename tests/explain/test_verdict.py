"""What explain makes of small runs that never ran: one claim per kind of trouble, each in milliseconds."""

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from rollcall.explain import checks
from rollcall.explain.evidence import Evidence
from rollcall.explain.findings import Finding
from rollcall.explain.loading.load import Lost, Run
from rollcall.explain.loading.table import Site
from rollcall.explain.verdict import Explanation, advice, causes_first, explain_run, in_words, to_json
from rollcall.record import ring_format
from tests.report.rings import FILE, FakeOp, run

ASYNC, WAITED, FAILED = ring_format.ASYNC, ring_format.WAITED, ring_format.FAILED


def explain(*ranks: list[FakeOp], outcome: str = "stopped", **facts: Any) -> Explanation:
    return explain_run(Evidence(run(ranks, outcome=outcome, **facts)))


def named(explanation: Explanation) -> tuple[str, tuple[int, ...], list[int]]:
    """Kind, ranks and lines of the verdict."""
    verdict = explanation.verdict
    assert verdict is not None
    return verdict.kind, verdict.ranks, [site.line for site in verdict.sites]


def steps(count: int, **different: Any) -> list[FakeOp]:
    return [FakeOp("all_reduce", n, n * 10, n * 10 + 5, **different) for n in range(1, count + 1)]


def test_a_healthy_run_has_no_finding() -> None:
    """Collectives that all make alike, a send that is received, async work that is waited for."""
    work = FakeOp("all_reduce", 4, 60, 70, waited_ms=65, flags=ASYNC | WAITED)
    found = explain(
        [*steps(3), FakeOp("send", 1, 50, 55, peer=1), work],
        [*steps(3), FakeOp("recv", 1, 50, 55, peer=0), work],
        outcome="ok",
        exit_code={0: 0, 1: 0},
    )
    assert (found.verdict, found.findings, found.outcome) == (None, [], "ok")


@pytest.mark.parametrize("column", ["site", "signature"])
def test_what_a_ring_had_no_room_for_is_not_compared(column: str) -> None:
    """The line or the shapes of an op are unknown on one rank: that is no difference between ranks."""
    made = run(
        [
            [*steps(3), FakeOp("send", 1, 50, 55, peer=1, thread=1)],
            [*steps(3), FakeOp("recv", 1, 50, 55, peer=0, thread=1)],
        ],
        exit_code={0: 0, 1: 0},
    )
    getattr(made.table, column)[2:5] = 0
    made.table.thread[:] = 1
    assert explain_run(Evidence(made)).findings == []


def test_forwards_that_a_ring_has_overwritten_are_not_missing() -> None:
    """They are not counted: which rank had more batches is not known."""
    forwards = [FakeOp("ddp_forward", 0, n, n + 1, group="0") for n in range(5)]
    blocked = FakeOp("all_reduce", 6, 60, flags=ASYNC | WAITED | ring_format.BUCKET, waited_ms=61)
    ended = {"exit_code": {1: 0}}
    assert named(explain([*forwards, blocked], [*forwards[2:]], **ended))[0] == "ddp-uneven-inputs"
    found = explain([*forwards, blocked], [*forwards[2:]], dropped={1: 4}, **ended)
    assert "ddp-uneven-inputs" not in [finding.kind for finding in found.findings]


def test_a_rank_that_did_not_come_is_missing() -> None:
    """The others wait in a call that it never made."""
    waiting = [*steps(2), FakeOp("all_reduce", 3, 40, line=9)]
    assert named(explain(waiting, waiting, steps(2))) == ("missing-rank", (2,), [9])


def test_a_run_that_was_stopped_while_ranks_were_blocked_hung() -> None:
    """The launcher only knows that it stopped it."""
    assert explain([FakeOp("barrier", 1, 0)], []).outcome == "hung"
    assert explain([FakeOp("barrier", 1, 0, 1)], [FakeOp("barrier", 1, 0, 1)]).outcome == "stopped"


def test_a_rank_in_another_op_is_a_mismatch() -> None:
    """It differs from the majority."""
    reduce, gather = FakeOp("all_reduce", 1, 0, line=4), FakeOp("all_gather", 1, 0, line=6)
    assert named(explain([reduce], [gather], [reduce])) == ("mismatched-op", (1,), [6, 4])


@pytest.mark.parametrize(
    ("kind", "different"),
    [
        ("mismatched-shape", {"shape": (7,)}),
        ("mismatched-dtype", {"dtype": "float16"}),
        ("mismatched-reduce-op", {"reduce": "MAX"}),
        ("mismatched-root", {"peer": 2}),
    ],
)
def test_ranks_that_differ_in_one_argument(kind: str, different: dict[str, Any]) -> None:
    """Of the same op: the kind says in which, and the rank that differs is named."""
    assert named(explain(steps(1), steps(1), steps(1, **different), outcome="ok"))[:2] == (kind, (2,))


def test_of_two_ranks_that_differ_both_are_named() -> None:
    """There is no majority."""
    assert named(explain(steps(1), steps(1, reduce="MAX"), outcome="ok"))[:2] == ("mismatched-reduce-op", (0, 1))


def test_the_same_calls_in_another_order() -> None:
    """Neither op is wrong, only their order on one rank."""
    order = [FakeOp("all_reduce", 1, 0, line=4), FakeOp("broadcast", 2, 1, line=5)]
    swapped = [FakeOp("broadcast", 1, 0, line=5), FakeOp("all_reduce", 2, 1, line=4)]
    assert named(explain(order, order, swapped))[:2] == ("order-swap", (2,))


def test_receives_that_wait_for_each_other() -> None:
    """Both sides of the circle are named."""
    found = explain([FakeOp("recv", 1, 0, peer=1)], [FakeOp("recv", 1, 0, peer=0)])
    assert named(found) == ("p2p-deadlock", (0, 1), [7])


def test_a_send_under_another_tag() -> None:
    """The receive waits for a tag that nobody sent."""
    found = explain([FakeOp("send", 1, 0, 5, peer=1, tag=1)], [FakeOp("recv", 1, 0, peer=0, tag=2)])
    assert named(found)[0] == "tag-mismatch"


def test_a_receive_that_nobody_sends_to() -> None:
    """And a send that nobody receives."""
    assert named(explain([], [FakeOp("recv", 1, 0, peer=0)]))[:2] == ("unmatched-recv", (1,))
    assert named(explain([FakeOp("send", 1, 0, 5, peer=1)], [], outcome="ok"))[:2] == ("unmatched-send", (0,))


def test_a_send_to_the_wrong_rank() -> None:
    """The one that waits for it is not to blame."""
    found = explain([FakeOp("send", 1, 0, 5, peer=2, line=3)], [FakeOp("recv", 1, 0, peer=0)], [])
    assert named(found) == ("wrong-peer", (0,), [3])


def test_a_send_and_its_receive_that_do_not_fit() -> None:
    """In size or in type."""
    send = FakeOp("send", 1, 0, 5, peer=1)
    small = FakeOp("recv", 1, 0, 5, peer=0, size_bytes=400, shape=(100,))
    half = FakeOp("recv", 1, 0, 5, peer=0, dtype="float16")
    assert named(explain([send], [small], outcome="ok"))[0] == "p2p-size"
    assert named(explain([send], [half], outcome="ok"))[0] == "p2p-dtype"


def test_a_receive_against_a_collective() -> None:
    """One rank waits for a message, the others in a collective for it."""
    barrier = [FakeOp("barrier", 1, 0)]
    assert named(explain(barrier, barrier, [FakeOp("recv", 1, 0, peer=0)]))[:2] == ("p2p-against-collective", (2,))


def test_of_few_ranks_in_a_collective_those_are_named_whom_a_message_is_awaited_from() -> None:
    """Three stages wait for each other, and the first of them for rank 3: nobody waits for a message of rank 4."""
    waiting = [[FakeOp("recv", 1, rank, peer=rank + 1)] for rank in range(3)]
    barrier = [FakeOp("barrier", 1, 0)]
    assert named(explain(*waiting, barrier, barrier))[:2] == ("p2p-against-collective", (3,))


def test_a_stage_that_left_its_loop_is_named_not_those_before_and_behind_it() -> None:
    """A send to rank 2 and a receive from it wait: it explains both. Two ranks that both send to rank 2 are odd."""
    barrier, send, recv = [FakeOp("barrier", 1, 0)], [FakeOp("send", 1, 0, peer=2)], [FakeOp("recv", 1, 0, peer=2)]
    for behind, ranks in ((recv, (2,)), (send, (1, 3))):
        found = explain(barrier, send, barrier, behind, barrier, barrier)
        assert named(found)[:2] == ("p2p-against-collective", ranks)


def test_groups_that_are_used_in_another_order() -> None:
    """Each rank waits in one group for a rank that waits in the other."""
    groups = {"a": [0, 1], "b": [0, 1]}
    found = explain([FakeOp("barrier", 1, 0, group="a")], [FakeOp("barrier", 1, 0, group="b")], groups=groups)
    assert named(found)[:2] == ("cross-group-deadlock", (0, 1))


def test_a_call_of_a_rank_that_is_not_in_the_group() -> None:
    """It is passed over silently: only the recording shows it."""
    assert named(explain(steps(1), [*steps(1), FakeOp("barrier", 1, 30, 31, group="", line=3)], outcome="ok")) == (
        "non-member-call",
        (1,),
        [3],
    )


def test_async_work_that_nobody_waited_for() -> None:
    """Of a rank that came to a good end."""
    work = [FakeOp("all_reduce", 1, 0, flags=ASYNC, line=5)]
    found = explain(work, work, outcome="ok", exit_code={0: 0, 1: 0})
    assert named(found) == ("unwaited-work", (0, 1), [5])
    bucket = [FakeOp("all_reduce", 1, 0, flags=ASYNC | ring_format.BUCKET, line=5)]  # its reducer waits
    assert explain(bucket, bucket, outcome="ok", exit_code={0: 0, 1: 0}).findings == []


def test_a_buffer_that_changed_before_its_wait() -> None:
    """Only on the rank that changed it."""
    work = FakeOp("all_reduce", 1, 0, 9, waited_ms=5, flags=ASYNC | WAITED)
    changed = FakeOp("all_reduce", 1, 0, 9, waited_ms=5, flags=ASYNC | WAITED, was_overwritten=True)
    assert named(explain([work], [changed], outcome="ok"))[:2] == ("buffer-overwritten", (1,))


def test_a_rank_that_failed_is_named_and_not_those_that_failed_with_it() -> None:
    """Their errors come out of the call that it did not come to."""
    broken = [*steps(1), FakeOp("all_reduce", 2, 30, flags=FAILED)]
    found = explain(
        broken,
        steps(1),
        outcome="failed",
        error={0: "RuntimeError: connection closed", 1: "KeyError: 'price'"},
        error_site={1: Site(FILE, 3, "load")},
        exit_code={0: 1, 1: 1},
        ended_ns={0: 2_000_000_000_000, 1: 1_000_100_000_000},
    )
    assert named(found)[:2] == ("rank-failed", (1,))
    assert "KeyError: 'price'" in found.findings[0].message


def test_a_rank_that_was_killed() -> None:
    """By its signal."""
    found = explain([*steps(1), FakeOp("all_reduce", 2, 30)], steps(1), outcome="failed", exit_code={1: -9})
    assert named(found)[:2] == ("rank-killed", (1,))
    assert signal.SIGKILL.name in found.findings[0].message


def test_ranks_that_all_exit_with_an_error_are_not_told_to_leave_together() -> None:
    """What to change is where they exit."""
    place = Site(FILE, 7, "main")
    exits: dict[str, Any] = {"exit_code": {0: 1, 1: 1}, "exit_site": {0: place, 1: place}}
    found = explain(steps(1), steps(1), outcome="failed", **exits)
    assert found.verdict is not None
    assert (found.verdict.kind, found.verdict.ranks) == ("rank-exited-early", (0, 1))
    assert advice(found.verdict) == "look at why the program exits there"


def test_a_rank_that_exited_while_others_wait() -> None:
    """It left in the middle of what the others still do."""
    found = explain([*steps(2), FakeOp("all_reduce", 3, 40)], steps(2), exit_code={1: 0})
    assert named(found)[:2] == ("rank-exited-early", (1,))


def test_a_host_that_nothing_reached_any_more() -> None:
    """Explains all that its ranks did not do."""
    made = run([[FakeOp("barrier", 1, 0)], []], outcome="stopped")
    cut = Lost("alpha", "was not heard of any more", True, (1,))
    found = explain_run(Evidence(Run(**{**made.__dict__, "lost": (cut,)})))
    assert named(found)[:2] == ("network-cut", (1,))


def late_steps(count: int, rank: int) -> list[FakeOp]:
    """Steps of 100 ms, to which rank 2 comes 60 ms late."""
    return [FakeOp("all_reduce", n, n * 100 + 60 * (rank == 2), n * 100 + 65) for n in range(1, count + 1)]


def test_a_rank_that_is_late_again_and_again_is_a_straggler() -> None:
    """With how much shorter the run would be without its delays."""
    found = explain(*(late_steps(20, rank) for rank in range(3)), outcome="ok")
    assert named(found)[:2] == ("straggler", (2,))
    [row] = [row for row in to_json(found)["waits"] if row["rank"] == 2]
    assert row["run_shorter_without"] == pytest.approx(20 * 0.06 / found.waits.run_s, abs=1e-4)
    assert f"{row['run_shorter_without']:.0%} shorter" in found.findings[0].message


def test_a_rank_that_was_late_once_is_no_straggler() -> None:
    """A checkpoint takes its time."""
    ranks = [[*steps(5), FakeOp("all_reduce", 6, 60 + 2000 * (rank == 1), 2070)] for rank in range(3)]
    assert explain(*ranks, outcome="ok").findings == []


def test_a_straggler_that_fetched_its_data_is_an_input_stall() -> None:
    """The sampler saw it wait for its data meanwhile."""
    fetching = [FakeOp("sample", 0, n * 100, n * 100 + 55, flags=ring_format.INPUT, line=3) for n in range(1, 21)]
    slow = [op for pair in zip(fetching, late_steps(20, 2), strict=True) for op in pair]
    found = explain(late_steps(20, 0), late_steps(20, 1), slow, outcome="ok")
    assert named(found) == ("input-stall", (2,), [3, 7])


@pytest.mark.parametrize(("stall_ms", "kinds"), [(400, []), (2500, ["input-stall"])])
def test_one_short_wait_for_data_is_chance(stall_ms: int, kinds: list[str]) -> None:
    """A busy machine may keep a rank from its processor for so long, also while it fetches."""

    def made(late_ms: int) -> list[FakeOp]:
        calls = [FakeOp("all_reduce", n, n * 10, n * 10 + 5) for n in range(1, 11)]
        fetching = [FakeOp("sample", 0, 110, 110 + late_ms, flags=ring_format.INPUT, line=3)] if late_ms else []
        return [*calls, *fetching, FakeOp("all_reduce", 11, 110 + late_ms, 111 + stall_ms)]

    found = explain(made(0), made(0), made(stall_ms), outcome="ok")
    assert [finding.kind for finding in found.findings] == kinds


def sampled(rank: int, *flags: int) -> list[FakeOp]:
    """A long run of short steps: now and then the sampler sees a rank between its calls, with each of the flags."""
    made = []
    for n, step in enumerate(late_steps(60, rank)):
        seen = FakeOp("sample", 0, step.entered_ms - 15, step.entered_ms - 15, flags=flags[n // 4 % len(flags)], line=3)
        made += [seen, step] if n % 4 == 0 else [step]
    return made


def test_a_rank_that_waits_for_its_data_in_every_short_step_is_an_input_stall() -> None:
    """Its samples are too few to add up; what counts is which of them waited."""
    found = explain(late_steps(60, 0), late_steps(60, 1), sampled(2, ring_format.INPUT), outcome="ok")
    assert named(found) == ("input-stall", (2,), [3, 7])


def test_how_fast_the_data_of_the_others_is_made_is_not_known_while_they_wait() -> None:
    """Workers of a loader make it beside the ranks: one rank is the last in every step even if all are equally slow.
    That is advice, and no verdict of a run that goes on. A single long wait is of that rank alone."""
    flags = ring_format.INPUT | ring_format.ELSEWHERE
    found = explain(late_steps(60, 0), late_steps(60, 1), sampled(2, flags), outcome="ok")
    assert named(found) == ("input-stall", (2,), [3, 7])
    assert found.findings[0].is_advice
    quick = [*steps(10), FakeOp("all_reduce", 11, 110, 2620)]
    once = [*steps(10), FakeOp("sample", 0, 110, 2610, flags=flags, line=3), FakeOp("all_reduce", 11, 2610, 2620)]
    [stall] = explain(quick, quick, once, outcome="ok").findings
    assert (stall.kind, stall.effect) == ("input-stall", "slow")


def test_where_all_wait_for_their_data_alike_it_does_not_make_one_slow() -> None:
    """Rank 2 computes for twice as long after it has its data."""
    waiting, computing = ring_format.INPUT, 0
    ranks = [sampled(0, waiting), sampled(1, waiting), sampled(2, waiting, computing, computing)]
    assert named(explain(*ranks, outcome="ok"))[:2] == ("straggler", (2,))


def test_a_rank_that_waited_itself_passes_the_blame_on() -> None:
    """Rank 1 is late for the others because it waits for rank 2."""
    groups = {"pair": [1, 2]}
    first = [FakeOp("barrier", n, n * 100, n * 100 + 61) for n in range(1, 21)]
    ranks: list[list[FakeOp]] = [first, [], []]
    for n in range(1, 21):
        for rank, at in ((1, 0), (2, 58)):
            ranks[rank] += [
                FakeOp("all_reduce", n, n * 100 + at, n * 100 + 59, group="pair"),
                FakeOp("barrier", n, n * 100 + 60 + rank * 0.1, n * 100 + 61),
            ]
    found = explain(*ranks, outcome="ok", groups=groups)
    assert found.verdict is None or found.verdict.ranks == (2,)


def test_of_several_findings_the_one_that_explains_the_others_is_the_verdict() -> None:
    """Whatever the order in which they were found: what stopped the run, and first what came first."""
    findings = [
        Finding("non-member-call", (0,), "", since_ns=1, effect="advice"),
        Finding("straggler", (1,), "", since_ns=1, effect="slow"),
        Finding("missing-rank", (2,), "", since_ns=9),
        Finding("missing-rank", (3,), "", since_ns=5),
        Finding("mismatched-shape", (4,), "", since_ns=3),
    ]
    assert [finding.ranks for finding in causes_first(findings)] == [(4,), (3,), (2,), (1,), (0,)]


def test_all_findings_are_told() -> None:
    """The first is the verdict, the others follow."""
    mismatched = [FakeOp("all_reduce", 1, 0, 5, reduce="MAX"), FakeOp("barrier", 2, 10)]
    found = explain([*steps(1), FakeOp("barrier", 2, 10)], mismatched, steps(1))
    assert [finding.kind for finding in found.findings] == ["missing-rank", "mismatched-reduce-op"]
    told = to_json(found)
    assert told["verdict"] == told["findings"][0]
    assert told["findings"][1]["ranks"] == [1]


find_goes_on = checks.find  # in the tests themselves a check that fails raises


def test_a_check_that_fails_leaves_the_findings_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named as a fault of rollcall, on the terminal and in the JSON."""

    def fails(_: Evidence) -> Iterator[Finding]:
        raise ValueError("not enough values")

    monkeypatch.setattr(checks, "find", find_goes_on)
    monkeypatch.setattr(checks, "CHECKS", (fails, *checks.CHECKS))
    found = explain([*steps(1), FakeOp("barrier", 2, 10)], steps(1))
    assert [finding.kind for finding in found.findings] == ["missing-rank"]
    (problem,) = to_json(found)["problems"]
    assert problem.startswith("a fault of rollcall: the check for fails failed (ValueError: not enough values)")


def test_a_verdict_says_what_where_and_what_to_change() -> None:
    """In one paragraph."""
    finding = Finding("tag-mismatch", (0, 1), "the tags differ", sites=(Site(FILE, 7, "step"),))
    first, what, where, change = in_words(finding).splitlines()
    assert first == "tag-mismatch — look at ranks 0-1"
    assert (what, where.split()) == ("  the tags differ", ["train.py:7"])
    assert change == f"  → {advice(finding)}"
