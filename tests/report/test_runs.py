"""Runs of all sizes and sorts, also those that nobody wants to look at."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rollcall.errors import UsageError
from rollcall.report.write import write as write_page
from rollcall.runs import find_run
from tests.report.fixtures import OpenedPage
from tests.report.rings import FakeOp, write
from tests.rollcall_command import Runner

OpenPage = Callable[..., OpenedPage]
MANY = 700


def test_lanes_of_many_ranks_are_drawn_together(tmp_path: Path, open_page: OpenPage) -> None:
    """With more ranks than the screen has lines, several share one; zoomed in, each has its own."""
    ops = [[FakeOp("all_reduce", n, n * 10 + (rank == 7) * 5, n * 10 + 6) for n in range(3)] for rank in range(MANY)]
    shown = open_page(write_page(write(tmp_path, ops)))
    assert shown.warnings == []
    assert shown.ask("rollcall.timeline.lanes.length") == MANY
    assert not shown.ask("rollcall.timeline.isExact")
    height = shown.ask("rollcall.timeline.models.image.data.image[0].shape[0]")
    assert 100 <= height <= 600
    shown.ask("() => rollcall.timeline.plot.y_range.setv({ start: 20.5, end: -0.5 })")
    shown.frame()
    assert shown.ask("rollcall.timeline.isExact")
    assert "64" not in shown.page.inner_text("#verdict")


HARM = "<img src=x onerror=harm=1>"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, browser: Any) -> Iterator[OpenedPage]:
    """One rank, on a host and by a command with names that would do harm; phases; seen somewhere between its ops."""
    folder = tmp_path_factory.mktemp("alone") / f"run-{HARM.replace('/', '')}"
    ops = [
        each
        for n in range(2000)
        for each in (
            FakeOp("phase", n, n * 100, n * 100 + 99, phase=("forward", "backward")[n % 2]),
            FakeOp("all_reduce", n, n * 100 + 5, n * 100 + 8, phase=("forward", "backward")[n % 2]),
            FakeOp("sample", 0, n * 100 + 30, n * 100 + 60),
        )
    ]
    write(folder, [ops], host=HARM)
    (folder / "run.json").write_text(
        '{"outcome": "ok", "command": ["</script><script>harm=1</script>"], "attempts": []}'
    )
    shown = OpenedPage(browser, write_page(folder, folder.parent / "page.html").as_uri())
    yield shown
    shown.page.close()


def test_phases_show_where_there_is_room(alone: OpenedPage) -> None:
    """Phases are bands with their names above the lanes; where most are too short to be seen, none is shown."""
    alone.ask("() => rollcall.timeline.show(0, rollcall.timeline.duration)")
    alone.frame()
    assert alone.ask("rollcall.timeline.phases.length") == 2000
    assert alone.ask("rollcall.timeline.models.bands.data.left.length") == 0
    alone.ask("() => rollcall.timeline.show(0.01, 0.21)")
    alone.frame()
    assert alone.ask("[...rollcall.timeline.models.heads.data.name]")[:2] == ["forward", "backward"]
    assert alone.warnings == []


def test_one_rank(alone: OpenedPage) -> None:
    """A run of one rank has one lane, and nobody waits."""
    assert alone.ask("rollcall.timeline.lanes.length") == 1
    assert alone.ask("rollcall.timeline.wait.every((each) => each === 0)")


def test_names_are_never_executed(alone: OpenedPage) -> None:
    """HTML in the name of a host, a function or a command is text."""
    assert alone.ask("window.harm") is None
    assert HARM in alone.ask("rollcall.timeline.lanes[0].host")
    assert "</script><script>harm=1" in alone.page.inner_text("#facts")
    assert alone.page.locator("img").count() == 0


@pytest.mark.parametrize(
    ("at_ms", "told"),
    [
        (140, "was in train.py:7 in step<script>"),
        (110, "was in train.py:7 in step<script>"),  # the sampler looks every 20 ms
        (165, "was in train.py:7 in step<script>"),
        (195, ""),
        (102, ""),  # in an op
    ],
)
def test_hover_between_ops_tells_where_it_was(alone: OpenedPage, at_ms: float, told: str) -> None:
    """Where a rank was seen while it was in no op is told between its ops, and nowhere else."""
    assert alone.ask("at => rollcall.samples.tell(0, at)", at_ms / 1000) == told


def test_hover_shows_it(alone: OpenedPage) -> None:
    """With the mouse between two ops, the tip has the rank, the time, and the line."""
    alone.page.locator("#timeline").scroll_into_view_if_needed()
    alone.ask("() => rollcall.timeline.show(0.1, 0.2)")
    alone.frame()
    x, y = alone.ask(
        """() => { const t = rollcall.timeline, view = Bokeh.index.find_one(t.plot), box = t.box();
            return [box.left + view.frame.x_scale.compute(0.145), box.top + view.frame.y_scale.compute(0)]; }"""
    )
    alone.page.mouse.move(x, y)
    alone.page.locator("#tip").wait_for(state="visible")
    first, second = alone.page.inner_text("#tip").splitlines()
    assert first.startswith(f"rank 0 on {HARM} · 14")
    assert second == "was in train.py:7 in step<script>"


def test_ranks_that_did_nothing(tmp_path: Path, open_page: OpenPage) -> None:
    """Rings without ops make a page without bars."""
    shown = open_page(write_page(write(tmp_path, [[], []])))
    assert shown.ask("rollcall.timeline.start.length") == 0
    assert shown.warnings == []


def test_without_rings(rollcall: Runner) -> None:
    """A run without recordings has no report, and one sentence says why; with --report the run's own outcome counts."""
    rollcall.script("print('here')")
    found = rollcall("run", "-n", 1, "--no-record", "--report", "script.py")
    assert found.code == 0
    assert "no report: " in found.err
    assert "has no rings" in found.err
    asked = rollcall("report")
    assert asked.code == 2
    assert asked.err.startswith("rollcall: ")
    assert "--no-record" in asked.err
    assert rollcall("watch").code == 2


def test_where_it_cannot_be_written(run: Runner) -> None:
    """A place that cannot be written to is named, with what to do."""
    found = run("report", "--out", "no/such/folder/page.html")
    assert found.code == 2
    assert "cannot write no/such/folder/page.html" in found.err


def test_a_run_that_is_not_there(tmp_path: Path) -> None:
    """The newest runs are named; the link to the newest is none."""
    for name in ("2026-01-01-a", "2026-01-02-b", "2026-01-03-c", "2026-01-04-d"):
        (tmp_path / name).mkdir()
    (tmp_path / "latest").symlink_to("2026-01-04-d")
    with pytest.raises(UsageError, match=r"the newest here are 2026-01-02-b, 2026-01-03-c, 2026-01-04-d$"):
        find_run("nothing", tmp_path)
