"""Where ranks are: which stacks are shown together, and what is said of ranks that have none."""

import json
from pathlib import Path

import pytest

from rollcall.errors import UsageError
from rollcall.live.questions import check_runs
from rollcall.live.stacks import Answer, ask, chosen, in_words
from rollcall.protocol.rank_stack import RankStack, StackFrame

WAITS = [
    StackFrame("/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 30, "all_reduce"),
    StackFrame("/far/train.py", 10, "step", "dist.all_reduce(x)"),
]
SLEEPS = [StackFrame("/usr/lib/libc.so.6", 0, "clock_nanosleep"), StackFrame("/far/train.py", 8, "step", "busy()")]


def answer(**more: object) -> Answer:
    stacks = {0: RankStack("a", 1, WAITS), 1: RankStack("a", 2, SLEEPS), 2: RankStack("b", 3, WAITS)}
    fields: dict[str, object] = {"attempt": 0, "stacks": stacks, "ranks": (0, 1, 2), "exit_codes": {}, **more}
    return Answer(**fields)  # type: ignore[arg-type]


def test_equal_stacks_are_shown_once() -> None:
    assert in_words(answer()).splitlines() == [
        "ranks 0,2 │ all_reduce (torch/distributed/distributed_c10d.py:30)",
        "          │ step (/far/train.py:10)   dist.all_reduce(x)",
        "rank 1    │ clock_nanosleep (libc.so.6)",
        "          │ step (/far/train.py:8)   busy()",
    ]


def test_ranks_without_a_stack_say_why() -> None:
    """They have ended, cannot be read, or are on a host that does not answer."""
    stacks = {0: RankStack("a", 1, why_not="it is not recorded")}
    found = in_words(answer(stacks=stacks, ranks=(0, 1, 2), exit_codes={1: 3}, silent=("b",)))
    assert found.splitlines() == [
        "rank 0 │ (no stack: it is not recorded)",
        "rank 1 │ (exited with code 3)",
        "rank 2 │ (no answer from b)",
    ]


def test_one_rank_can_be_chosen() -> None:
    assert "all_reduce" not in in_words(chosen(answer(), (1,)))


@pytest.mark.parametrize(("rank", "said"), [(7, "there is no rank 7"), (1, "rank 1 has ended: it exited")])
def test_a_rank_that_is_not_there_is_refused(rank: int, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        chosen(answer(exit_codes={1: 3}), (rank,))


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"outcome": "failed"}, "has ended .failed."),
        ({"outcome": "running", "plan": {"record": True}, "attempts": []}, "no rank of run has begun yet"),
    ],
)
def test_a_run_without_running_ranks_is_refused(tmp_path: Path, facts: dict[str, object], said: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text(json.dumps(facts))
    with pytest.raises(UsageError, match=said):
        check_runs(tmp_path / "run")


def test_a_run_that_ends_meanwhile_does_not_answer(tmp_path: Path) -> None:
    """The question is taken back."""
    gone = {"outcome": "running", "plan": {}, "attempts": [{}]}
    (tmp_path / "run.json").write_text(json.dumps({**gone, "outcome": "ok"}))
    with pytest.raises(UsageError, match="has ended"):
        ask(tmp_path)
    assert not list(tmp_path.glob("stacks/*"))
