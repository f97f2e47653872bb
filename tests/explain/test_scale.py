"""Runs of a thousand ranks: what is said about them fits into one screen, and names all ranks."""

import io
from collections.abc import Iterator

import pytest
from rich.console import Console

from rollcall.explain.evidence import Evidence
from rollcall.explain.findings import Finding, folded
from rollcall.explain.loading.load import Run
from rollcall.explain.terminal import print_explanation
from rollcall.explain.verdict import Explanation, explain_run
from rollcall.record import ring_format
from tests.report.rings import START_NS, FakeOp, run

RANKS = 1024
SCREEN, WIDTH = 24, 100


def said_of(found: Explanation) -> str:
    """What the terminal shows, which must fit into one screen."""
    text = io.StringIO()
    print_explanation(Console(file=text, width=WIDTH, highlight=False, soft_wrap=True), found)
    assert sum(max(1, -(-len(line) // WIDTH)) for line in text.getvalue().splitlines()) <= SCREEN
    return text.getvalue()


def explained(made: Run) -> Explanation:
    return explain_run(Evidence(made))


def steps(last: int) -> list[FakeOp]:
    return [FakeOp("all_reduce", seq, 10 * seq, 10 * seq + 5) for seq in range(1, last + 1)]


def test_a_bug_of_the_last_ranks_names_them_as_a_range() -> None:
    ranks = [
        [*steps(3), FakeOp("all_reduce", 4, 50, dtype="float16" if rank >= 900 else "float32")] for rank in range(RANKS)
    ]
    found = explained(run(ranks, outcome="stopped"))
    assert found.verdict
    assert (found.verdict.kind, found.verdict.ranks) == ("mismatched-dtype", tuple(range(900, RANKS)))
    assert "look at ranks 900-1023" in said_of(found)


def test_a_circle_of_a_thousand_ranks_is_told_by_its_pattern() -> None:
    ranks = [[*steps(2), FakeOp("send", 1, 50 + rank / 1000, peer=(rank + 1) % RANKS)] for rank in range(RANKS)]
    found = explained(run(ranks, outcome="stopped"))
    assert found.verdict
    assert (found.verdict.kind, len(found.verdict.ranks)) == ("p2p-deadlock", RANKS)
    said = said_of(found)
    assert "each of ranks 0-1022 in send at train.py:7 for the next one, rank 1023 in send at train.py:7" in said


def test_a_circle_without_a_pattern_is_told_by_its_first_ranks() -> None:
    """Each rank sends to the rank with five times its number: no two of them are equally far apart for that reason."""
    order = [pow(5, turn, 1009) for turn in range(504)]  # five times the last is the first again, modulo 1009
    follows = dict(zip(order, [*order[1:], order[0]], strict=True))
    ranks = [
        [*steps(2), *([FakeOp("send", 1, 50, peer=follows[rank])] if rank in follows else [])] for rank in range(1009)
    ]
    found = explained(run(ranks, outcome="stopped"))
    circle = next(each for each in found.findings if each.kind == "p2p-deadlock")
    assert len(circle.ranks) == len(order)
    assert "rank 1 in send at train.py:7 for rank 5, rank 5 in send at train.py:7 for rank 25, " in circle.message
    assert f"and {len(order) - 4} more such" in circle.message
    assert "after it" not in said_of(found)


def test_a_small_circle_is_told_rank_by_rank() -> None:
    ranks = [[*steps(2), FakeOp("send", 1, 50 + rank, peer=(rank + 1) % 3)] for rank in range(3)]
    found = explained(run(ranks, outcome="stopped"))
    assert found.verdict
    assert "rank 1 in send at train.py:7 for rank 2, rank 2 in" in found.verdict.message


def test_a_thousand_ranks_that_fail_because_one_died_are_one_line() -> None:
    """Rank 17 was killed, and the all_reduce of all others failed."""
    killed, failed = 17, [rank for rank in range(RANKS) if rank != 17]
    call = FakeOp("all_reduce", 4, 50, flags=ring_format.FAILED, issued_ms=51)
    ranks = [steps(3) if rank == killed else [*steps(3), call, FakeOp("exception", 0, 60)] for rank in range(RANKS)]
    died_ns = {rank: START_NS + 60_000_000 + (rank != killed) * 5_000_000 for rank in range(RANKS)}
    made = run(
        ranks,
        outcome="failed",
        exit_code={rank: -9 if rank == killed else 1 for rank in range(RANKS)},
        error=dict.fromkeys(failed, "RuntimeError: Connection closed by peer"),
        ended_ns={rank: died_ns[rank] for rank in failed},
        died_ns=died_ns,
    )
    found = explained(made)
    assert [(each.kind, each.ranks) for each in found.findings] == [("rank-killed", (killed,))]
    said = said_of(found)
    assert "rank 17 (killed by signal 9), ranks 0-16,18-1023 (RuntimeError, 5.00 ms later)" in said


def test_calls_that_differ_alike_are_one_finding() -> None:
    ranks = [
        [
            FakeOp("all_reduce", seq, 10 * seq, 10 * seq + 5, dtype="float16" if rank == 7 else "float32")
            for seq in range(1, 301)
        ]
        for rank in range(64)
    ]
    found = explained(run(ranks, exit_code=dict.fromkeys(range(64), 0)))
    assert [(each.kind, each.ranks) for each in found.findings] == [("mismatched-dtype", (7,))]
    assert "so do the ranks in 300 calls of this line" in found.findings[0].message
    said_of(found)


def test_ranks_that_fail_alike_are_one_finding() -> None:
    """Each by itself, with an error text of its own."""
    ranks = [[*steps(3), FakeOp("exception", 0, 60 + rank / 1000)] for rank in range(RANKS)]
    ended_ns = {rank: START_NS + 60_000_000 + rank * 1000 for rank in range(RANKS)}
    made = run(
        ranks,
        outcome="failed",
        exit_code=dict.fromkeys(range(RANKS), 1),
        error={rank: f"ValueError: bad value {rank}" for rank in range(RANKS)},
        ended_ns=ended_ns,
        died_ns=ended_ns,
    )
    found = explained(made)
    assert [(each.kind, len(each.ranks)) for each in found.findings] == [("rank-failed", RANKS)]
    assert "bad value 0; the same of ranks 1-1023" in said_of(found)


def test_values_that_are_different_on_all_ranks_are_told_of_a_few() -> None:
    ranks = [[*steps(3), FakeOp("all_reduce", 4, 50, shape=(rank,))] for rank in range(RANKS)]
    assert "1020 other ranks: 1020 other values" in said_of(explained(run(ranks, outcome="stopped")))


def test_hundreds_of_findings_fit_into_one_screen() -> None:
    """The verdict with its lines, two others, and how many more there are of each kind."""
    findings = [Finding("rank-failed", (rank,), f"rank {rank} failed: {'x' * rank}") for rank in range(300)]
    healthy = explained(run([steps(3)] * 64))
    said = said_of(Explanation(healthy.run, "failed", findings, healthy.waits, healthy.costs, ()))
    assert "and 297 × rank-failed; --json has all" in said


def test_findings_on_different_lines_stay_apart() -> None:
    found = folded([Finding("rank-failed", (0,), "rank 0 failed"), Finding("rank-failed", (1,), "rank 1 exploded")])
    assert [each.ranks for each in found] == [(0,), (1,)]


def exchanged(ranks: int, calls: int) -> Iterator[list[FakeOp]]:
    """all_to_alls with other splits in each call, on each rank; what rank 2 expects of rank 0 in the last is wrong."""
    for rank in range(ranks):
        made = []
        for seq in range(1, calls + 1):
            sent = [(rank + other + seq) % 5 for other in range(ranks)]
            taken = [(other + rank + seq) % 5 for other in range(ranks)]
            taken[0] += seq == calls and rank == 2
            ends = 0 if seq == calls else 10 * seq + 5
            splits = ("single", taken, sent, (sum(taken),))
            made.append(FakeOp("all_to_all", seq, 10 * seq, ends, shape=(sum(sent),), splits=splits, line=9))
        yield made


def test_splits_that_match_in_all_calls_but_one() -> None:
    found = explained(run(list(exchanged(8, 40)), outcome="stopped"))
    assert found.verdict
    assert (found.verdict.kind, found.verdict.ranks) == ("mismatched-splits", (0, 2))
    assert "rank 0 sends 2 to rank 2, which expects 3" in found.verdict.message


def test_calls_whose_splits_match_are_not_made_into_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each of thousands of calls would cost as much as a finding."""
    evidence = Evidence(run(list(exchanged(8, 40)), outcome="stopped"))
    made: list[int] = []
    make = evidence.calls._make
    monkeypatch.setattr(evidence.calls, "_make", lambda number: made.append(number) or make(number))
    explain_run(evidence)
    assert made == [39]


def test_the_rows_of_tables_are_as_many_as_there_is_room_for() -> None:
    """A run of three ranks has all of them in its table."""
    said = said_of(explained(run([[FakeOp("all_reduce", 1, 10 + rank, 20)] for rank in range(3)])))
    assert [line.split()[0] for line in said.splitlines() if "of 1 calls" in line] == ["0", "1", "2"]
