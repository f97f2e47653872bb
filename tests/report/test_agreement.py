"""The terminal, the page and the trace draw what explain computed once: they agree on who waited for whom."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bokeh.document import Document
from bokeh.models import ColumnDataSource

from rollcall.explain import terminal
from rollcall.explain.evidence import Evidence
from rollcall.explain.loading.load import load
from rollcall.explain.verdict import explain, to_json
from rollcall.report import page
from rollcall.report.perfetto import export
from rollcall.report.write import gather
from tests.report.rings import FakeOp, write
from tests.rollcall_command import Runner

_SHORT_S = 0.0005  # waits that are too short for the trace, all of a rank together


@pytest.fixture(params=["made", "real"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Ops of all sorts, of which one never ends; and a real run."""
    if request.param == "real":
        runner: Runner = request.getfixturevalue("run")
        return runner.latest()
    steps = [
        [FakeOp("all_reduce", n, n * 10 + (5 if n % 3 == rank else 0), n * 10 + 8) for n in range(1, 9)]
        for rank in range(3)
    ]
    steps[0] += [
        FakeOp("send", 1, 200, 201, peer=1),
        FakeOp("broadcast", 9, 220, 221, peer=0),
        FakeOp("barrier", 10, 230),
    ]
    steps[1] += [
        FakeOp("recv", 1, 150, 202, peer=0),
        FakeOp("broadcast", 9, 210, 222, peer=0),
        FakeOp("barrier", 10, 240),
    ]
    steps[2] += [FakeOp("broadcast", 9, 260, 261, peer=0)]
    return write(tmp_path, steps)


@pytest.fixture
def told(folder: Path) -> list[dict[str, Any]]:
    """What `rollcall explain --json` says of the ranks."""
    return list(to_json(explain(folder))["waits"])


def test_the_page_shows_what_the_terminal_says(folder: Path, told: list[dict[str, Any]]) -> None:
    """Seconds that each rank caused and suffered, and how much shorter the run would be without its delays."""
    shown = page.figures_of(gather(folder).results)
    shares = _columns(shown["shares-plot"], "caused")
    assert shares["caused"].tolist() == pytest.approx([row["caused_s"] for row in told], abs=1e-5)
    assert shares["suffered_s"].tolist() == pytest.approx([row["suffered_s"] for row in told], abs=1e-5)
    matrix = _columns(shown["matrix-plot"], "value")["value"].reshape(3, 3)
    assert matrix.sum(axis=1).tolist() == pytest.approx([row["suffered_s"] for row in told], abs=1e-5)
    what_if = _columns(shown["what-if-plot"], "saved")
    run_s = what_if["took"][0]
    for name, saved_s in list(zip(what_if["name"], what_if["saved"], strict=True))[1:]:
        rank = int(str(name).split()[1])
        assert saved_s / run_s == pytest.approx(told[rank]["run_shorter_without"], abs=1e-3)
    assert len(what_if["name"]) == 1 + sum(row["run_shorter_without"] > 0.01 for row in told)


def test_the_table_of_the_terminal_shows_the_same(folder: Path, told: list[dict[str, Any]]) -> None:
    rows = terminal.waits_table(explain(folder)).rows
    assert [row[-1] for row in rows] == [f"{told[int(row[0])]['run_shorter_without']:.0%} shorter" for row in rows]
    assert rows


def _columns(figure: dict[str, Any], name: str) -> dict[str, np.ndarray]:
    """The source of a figure that has this column, as a browser would read it."""
    document = Document.from_json(figure["doc"])
    sources = [each for each in document.select({"type": ColumnDataSource}) if name in each.data]
    return {key: np.asarray(values) for key, values in sources[0].data.items()}


def test_the_trace_shows_what_the_terminal_says(folder: Path, told: list[dict[str, Any]], tmp_path: Path) -> None:
    """The slices of waiting of a rank sum up to what it suffered; for whom it waited is in their names."""
    export(folder, None, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    waits = [event for event in events if event.get("cat") == "wait" and _is_counted(events, event)]
    suffered: Counter[str] = Counter()
    for event in waits:
        suffered[tracks[event["tid"]]] += event["dur"] / 1e6
    for row in told:
        assert suffered[f"rank {row['rank']}"] == pytest.approx(row["suffered_s"], abs=_SHORT_S)
    matrix = Evidence(load(folder)).waits.matrix(64)[0]
    for event in waits:
        mine, theirs = (int(name.split()[-1]) for name in (tracks[event["tid"]], event["name"]))
        assert matrix[mine, theirs] > 0


def _is_counted(events: list[dict[str, Any]], wait: dict[str, Any]) -> bool:
    """Waits in the setup of a group are drawn, and not counted."""
    (op,) = [
        each
        for each in events
        if each.get("cat") == "op"
        and each["tid"] == wait["tid"]
        and each["ts"] <= wait["ts"] < each["ts"] + each["dur"]
    ]
    return op["name"] not in ("init", "new_group", "ddp")
