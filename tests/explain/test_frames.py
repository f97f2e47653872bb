"""`rollcall.load(run)` and `rollcall.explain(run)`: a run as tables."""

import polars
import pytest

import rollcall
from rollcall.explain import frames
from tests.record.recorded import HEAD, run_recorded
from tests.rollcall_command import Runner

PROGRAM = HEAD + "import time\nfor _ in range(3):\n    time.sleep(rank / 10)\n    dist.all_reduce(t)\n"


def test_a_run_as_tables(rollcall_run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With pandas a row per op with the rank that it waited for; without a library of tables, a list of dicts."""
    pandas = pytest.importorskip("pandas")
    ops = rollcall.load(rollcall_run).ops
    assert isinstance(ops, pandas.DataFrame)
    reduced = ops[ops.op == "all_reduce"]
    assert sorted(reduced["rank"].tolist()) == [0, 0, 0, 1, 1, 1]
    waited = reduced[reduced["rank"] == 0]
    assert {*waited.waited_for} <= {1, -1}
    assert waited.waited_s.sum() == pytest.approx(rollcall.explain(rollcall_run).waits.suffered_s[0], abs=1e-5)
    assert waited.site.str.endswith("script.py:8").all()
    monkeypatch.setattr(frames, "_library", lambda: None)
    plain = rollcall.load(rollcall_run)
    assert [row["op"] for row in plain.ops].count("all_reduce") == 6
    assert [(row["rank"], row["exit_code"]) for row in plain.ranks] == [(0, 0), (1, 0)]


def test_the_same_with_polars(rollcall_run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "_library", lambda: "polars")
    assert isinstance(rollcall.load(rollcall_run).ops, polars.DataFrame)
    assert rollcall.explain(rollcall_run).findings.columns[:2] == ["kind", "ranks"]


def test_an_explanation(rollcall_run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what the terminal says; its tables have a row per rank, op, line and phase."""
    monkeypatch.setattr(frames, "_library", lambda: None)
    found = rollcall.explain(rollcall_run)
    assert (found.outcome, found.deaths) == ("ok", [])
    assert "2 of 2 ranks recorded" in str(found)
    assert [row["rank"] for row in found.waits] == [0, 1]
    assert {row["by"] for row in found.communication} == {"op", "line", "phase"}
    page = found._repr_html_()
    assert "<caption>who waited for whom" in page
    assert page.count("<table>") == page.count("</table>") == 2


def test_no_run_is_one_sentence() -> None:
    with pytest.raises(rollcall.UsageError, match="there is no run nowhere"):
        rollcall.explain("nowhere")


@pytest.fixture(name="rollcall_run", scope="module")
def recorded_run(tmp_path_factory: pytest.TempPathFactory) -> str:
    runner = Runner(tmp_path_factory.mktemp("frames"))
    runner.env.setdefault("ROLLCALL_NATIVE", "1")
    run_recorded(runner, PROGRAM)
    return str(runner.latest())
