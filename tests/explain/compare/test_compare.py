"""`rollcall compare`: the first call at which two runs part, and where the time went."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rollcall.cli.app import app
from rollcall.errors import UsageError
from rollcall.explain.compare.comparison import RunComparison, calls_in_words, compare, times_in_words, to_json
from rollcall.report.compare import write as write_page
from tests.report.rings import FakeOp, write

Change = Callable[[int, int, FakeOp], list[FakeOp]]


def same(rank: int, number: int, op: FakeOp) -> list[FakeOp]:
    return [op]


def run(
    folder: Path,
    *,
    seed: int = 0,
    ranks: int = 4,
    steps: int = 60,
    late_ms: dict[int, float] | None = None,
    longer_ms: float = 0,
    slower: float = 1,
    moved: int = 0,
    change: Change = same,
) -> Path:
    """Steps of an all_reduce and a broadcast, with noise. `late_ms`: how much longer ranks compute before each
    all_reduce; `longer_ms`: how much longer each broadcast takes; `slower`: how many times as long all
    ops take; `change`: what a rank makes of its n-th op."""
    noise = random.Random(seed)
    made: list[list[FakeOp]] = [[] for _ in range(ranks)]
    now = 0.0
    for step in range(steps):
        for line, op, computing_ms, takes_ms, peer in (
            (12, "all_reduce", 10, 3, -1),
            (20, "broadcast", 2, 1 + longer_ms, 0),
        ):
            extra = late_ms or {} if op == "all_reduce" else {}
            came = [now + computing_ms + noise.gauss(0, 0.3) + extra.get(rank, 0) for rank in range(ranks)]
            now = max(came) + slower * takes_ms + abs(noise.gauss(0, 0.1))
            for rank in range(ranks):
                seq = 2 * step + 1 + (op == "broadcast")
                one = FakeOp(op, seq, came[rank], now, line=line + moved, peer=peer, phase=op)
                made[rank] += change(rank, len(made[rank]), one)
    return write(folder, made)


def compared(tmp_path: Path, **more: Any) -> RunComparison:
    return compare(run(tmp_path / "one", seed=1), run(tmp_path / "two", seed=2, **more))


def test_two_runs_of_the_same_program_differ_in_nothing(tmp_path: Path) -> None:
    found = compared(tmp_path)
    assert calls_in_words(found) == "all 480 calls are the same, in the same order"
    assert times_in_words(found) == "no line took more or less time beyond noise"


@pytest.mark.parametrize("seed", range(3, 33))
def test_noise_is_not_told_as_a_difference(tmp_path: Path, seed: int) -> None:
    found = compare(run(tmp_path / "one", seed=1000 + seed), run(tmp_path / "two", seed=seed))
    assert found.times.notable == []


def test_lines_that_moved_are_the_same_lines(tmp_path: Path) -> None:
    found = compared(tmp_path, moved=5)
    assert (found.calls.parting, found.times.notable) == (None, [])


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"shape": (7,)}, "argument", "the same call with another shape: all_reduce float32 [1000]"),
        ({"dtype": "float16"}, "argument", "the same call with another dtype"),
        ({"reduce": "MAX"}, "argument", "the same call with another reduce op"),
        ({"op": "barrier"}, "op", "another call: all_reduce float32 [1000] at train.py:12 in the first run, barrier"),
        ({"group": "1"}, "op", "all_reduce float32 [1000] at train.py:12 of group 1 in the second"),
    ],
)
def test_the_first_call_that_differs_is_named_with_its_ranks(
    tmp_path: Path, change: dict[str, Any], kind: str, words: str
) -> None:
    def differently(rank: int, number: int, op: FakeOp) -> list[FakeOp]:
        return [replace(op, **change)] if number in (40, 60) and rank > 1 else [op]

    parting = compared(tmp_path, change=differently).calls.parting
    assert parting is not None
    assert (parting.kind, parting.number, parting.ranks) == (kind, 41, (2, 3))
    assert words in parting.what


def test_one_call_more_is_told_as_such(tmp_path: Path) -> None:
    def twice(rank: int, number: int, op: FakeOp) -> list[FakeOp]:
        return [replace(op, op="barrier", line=30, peer=-1), op] if number == 50 else [op]

    parting = compared(tmp_path, change=twice).calls.parting
    assert parting is not None
    assert (parting.kind, parting.number, parting.ranks) == ("extra", 51, (0, 1, 2, 3))
    assert "one call more" in parting.what


def test_another_order_is_told_as_such(tmp_path: Path) -> None:
    held: dict[int, FakeOp] = {}

    def swapped(rank: int, number: int, op: FakeOp) -> list[FakeOp]:
        if op.seq == 31:
            held[rank] = op
            return []
        return [replace(op, seq=31), replace(held[rank], seq=32)] if op.seq == 32 else [op]

    parting = compared(tmp_path, change=swapped).calls.parting
    assert parting is not None
    assert (parting.kind, parting.number) == ("order", 31)


def test_a_run_that_goes_on_is_told(tmp_path: Path) -> None:
    parting = compared(tmp_path, steps=70).calls.parting
    assert parting is not None
    assert (parting.kind, parting.number) == ("count", 121)
    assert "more calls in the second run, from all_reduce float32 [1000] at train.py:12 on" in parting.what


def test_a_rank_that_became_slow_is_named_and_not_those_that_wait_for_it(tmp_path: Path) -> None:
    said = times_in_words(compared(tmp_path, late_ms={2: 8}))
    assert said.startswith("rank 2 computed 4")
    assert "mostly before all_reduce at train.py:12" in said


def test_a_line_on_which_all_ranks_compute_longer_is_named(tmp_path: Path) -> None:
    said = times_in_words(compared(tmp_path, late_ms=dict.fromkeys(range(4), 5.0)))
    assert said.startswith("computing before all_reduce at train.py:12")


def test_an_op_that_became_slow_is_named_by_line_op_and_phase(tmp_path: Path) -> None:
    found = compared(tmp_path, longer_ms=2)
    assert times_in_words(found).startswith("communicating in broadcast at train.py:20")
    slower = {(each.by, each.place) for each in found.times.notable if each.sort == "communicating"}
    assert {("op", "broadcast"), ("phase", "broadcast")} <= slower
    assert ("op", "all_reduce") not in slower


def test_the_parts_of_a_run_sum_up_to_its_time(tmp_path: Path) -> None:
    found = compared(tmp_path, late_ms={1: 4})
    assert sum(each.first_s for each in found.times.whole) == pytest.approx(found.times.first_s, rel=0.02)
    assert sum(each.second_s for each in found.times.whole) == pytest.approx(found.times.second_s, rel=0.02)


def test_runs_of_different_worlds_are_compared_per_rank(tmp_path: Path) -> None:
    found = compare(run(tmp_path / "one", seed=1), run(tmp_path / "two", seed=2, ranks=8))
    assert found.calls.parting is None
    assert found.times.whole[0].second_s == pytest.approx(found.times.whole[0].first_s, rel=0.05)
    ranks = {each.place for each in found.times.differences if each.by == "rank"}
    assert ranks == {f"rank {number}" for number in range(4)}  # those that only one of them has are no difference
    assert found.times.slow_rank is None


def test_the_page_shows_both_and_executes_nothing(tmp_path: Path) -> None:
    found = compared(tmp_path, late_ms={2: 8})
    write_page(found, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "rank 2 computed" in text
    assert "step<script>" not in text
    assert "step&lt;script&gt;" in text


def test_json_has_everything(tmp_path: Path) -> None:
    found = json.loads(json.dumps(to_json(compared(tmp_path, steps=70))))
    assert found["parting"]["kind"] == "count"
    assert {each["by"] for each in found["differences"]} == {"line", "op", "rank", "phase"}
    assert [each["calls"] for each in found["runs"]] == [480, 560]


def test_the_command_prints_a_table_and_writes_a_page(tmp_path: Path) -> None:
    one, two = run(tmp_path / "one", seed=1), run(tmp_path / "two", seed=2, late_ms={2: 8})
    page = tmp_path / "page.html"
    said = CliRunner().invoke(app, ["compare", str(one), str(two), "--report", str(page)])
    assert said.exit_code == 0
    assert "time: rank 2 computed" in said.output
    assert "by rank" in said.output
    assert page.exists()


def test_a_page_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot write"):
        write_page(compared(tmp_path), tmp_path / "nowhere" / "page.html")


def test_the_page_works_in_chromium(tmp_path: Path, browser: Any) -> None:
    """It needs nothing else, makes no complaint, and its tables sort."""
    write_page(compared(tmp_path, late_ms={2: 8}), tmp_path / "page.html")
    page = browser.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: complaints.append(request.url) if request.url.startswith("http") else None)
    page.goto(f"file://{tmp_path}/page.html")
    assert page.locator("#by-rank tbody tr").first.inner_text().startswith("rank 2: computing")
    page.locator("#by-rank th", has_text="second").first.click()
    values = page.eval_on_selector_all("#by-rank tbody tr", "rows => rows.map(row => +row.cells[2].dataset.value)")
    assert values == sorted(values, reverse=True)
    assert complaints == []
    page.close()


def test_a_slower_network_is_not_told_of_one_line(tmp_path: Path) -> None:
    words = times_in_words(compared(tmp_path, slower=3))
    assert words.startswith("communicating took ")
    assert words.endswith("on every line, as if the network or the machines became slower")


def test_lines_that_both_runs_have_are_the_same_beside_a_new_one(tmp_path: Path) -> None:
    """Once, the all_reduce is called on a new line before the old one."""

    def elsewhere(rank: int, number: int, op: FakeOp) -> list[FakeOp]:
        return [replace(op, line=9)] if number == 50 else [op]

    found = compared(tmp_path, change=elsewhere)
    assert [each.place for each in found.times.notable if "train.py:9" not in each.place] == []
