"""What a rank does after the launcher has asked it to end is the launcher's doing, and what it did before its own."""

import json
from pathlib import Path

from rollcall.explain.verdict import Explanation, explain
from rollcall.record import ring_format
from tests.report.rings import START_NS, FakeOp, write

ASKED_MS = 60_000.0
GRACE_S = 1.0


def explain_stopped(folder: Path, ranks: list[list[FakeOp]]) -> Explanation:
    """A run that hung, and whose ranks were asked to end; all were gone soon after."""
    write(folder, ranks)
    numbers = [str(rank) for rank in range(len(ranks))]
    attempt = {
        "world_size": len(ranks),
        "hung": True,
        "outcome": "hung",
        "asked": dict.fromkeys(numbers, True),
        "exit_codes": dict.fromkeys(numbers, -15),
        "ended_ns": dict.fromkeys(numbers, START_NS + int(ASKED_MS * 1e6) + 300_000_000),
    }
    facts = {"outcome": "hung", "plan": {"hang_after_s": 6, "grace_s": GRACE_S}, "attempts": [attempt]}
    (folder / "run.json").write_text(json.dumps(facts))
    return explain(folder)


def explain_failed(folder: Path, ranks: list[list[FakeOp]], failed: int, failed_ms: float) -> Explanation:
    """A run in which one rank failed, and the others were asked to end then; all were gone soon after."""
    write(folder, ranks)
    numbers = [str(rank) for rank in range(len(ranks))]
    gone_ns = START_NS + int(failed_ms * 1e6)
    attempt = {
        "world_size": len(ranks),
        "outcome": "failed",
        "asked": {number: int(number) != failed for number in numbers},
        "exit_codes": {number: 1 if int(number) == failed else -15 for number in numbers},
        "ended_ns": {number: gone_ns + 100_000_000 * (int(number) != failed) for number in numbers},
    }
    facts = {"outcome": "failed", "plan": {"grace_s": GRACE_S}, "attempts": [attempt]}
    (folder / "run.json").write_text(json.dumps(facts))
    return explain(folder)


WAITING = [FakeOp("all_reduce", 1, 10, 15), FakeOp("all_reduce", 2, 20)]


def test_a_rank_that_raises_since_the_others_are_gone_is_still_the_one_that_was_not_there(tmp_path: Path) -> None:
    """It was in a receive, which failed when the first of the others ended."""
    receiving = [
        FakeOp("all_reduce", 1, 10, 15),
        FakeOp("recv", 1, 30, peer=0, flags=ring_format.FAILED),
        FakeOp("exception", 0, ASKED_MS + 100),
    ]
    told = explain_stopped(tmp_path, [WAITING, WAITING, receiving])
    assert told.verdict is not None
    assert (told.verdict.kind, told.verdict.ranks) == ("p2p-against-collective", (2,))


def test_a_rank_that_answers_by_sys_exit_is_still_the_one_that_was_not_there(tmp_path: Path) -> None:
    """Its own handler of SIGTERM."""
    busy = [FakeOp("all_reduce", 1, 10, 15), FakeOp("exit", 0, ASKED_MS + 100)]
    told = explain_stopped(tmp_path, [WAITING, WAITING, busy])
    assert told.verdict is not None
    assert (told.verdict.kind, told.verdict.ranks) == ("missing-rank", (2,))


def test_an_error_from_long_before_is_the_ranks_own(tmp_path: Path) -> None:
    """A thread of its program kept it alive."""
    failed = [FakeOp("all_reduce", 1, 10, 15), FakeOp("exception", 0, 40, line=12)]
    told = explain_stopped(tmp_path, [WAITING, WAITING, failed])
    assert told.verdict is not None
    assert (told.verdict.kind, told.verdict.ranks) == ("rank-failed", (2,))
    assert [site.line for site in told.verdict.sites][:1] == [12]


def test_a_rank_that_destroyed_its_groups_has_left_whatever_ended_it_then(tmp_path: Path) -> None:
    """Rank 0 failed since rank 1 had left; rank 1 was still at work, and was ended."""
    both = FakeOp("all_reduce", 1, 10, 15, line=12)
    failed = [
        both,
        FakeOp("all_reduce", 2, 20, flags=ring_format.FAILED, line=14),
        FakeOp("exception", 0, 40, line=14),
    ]
    left = [both, FakeOp("destroy", 0, 30, 31)]
    told = explain_failed(tmp_path, [failed, left, failed], failed=0, failed_ms=50)
    assert told.verdict is not None
    assert (told.verdict.kind, told.verdict.ranks) == ("missing-rank", (1,))


def test_a_rank_that_made_its_groups_again_has_not_left(tmp_path: Path) -> None:
    again = [
        FakeOp("all_reduce", 1, 10, 15),
        FakeOp("destroy", 0, 30, 31),
        FakeOp("init", 2, 32, 33),
        FakeOp("all_reduce", 3, 34, 36),
    ]
    failed = [*again, FakeOp("exception", 0, 40, line=12)]
    told = explain_failed(tmp_path, [failed, again, again], failed=0, failed_ms=50)
    assert told.verdict is not None
    assert (told.verdict.kind, told.verdict.ranks) == ("rank-failed", (0,))
    assert told.run.ranks[1].exit_code is None
