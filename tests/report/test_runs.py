"""Runs of all sizes and sorts, also those that nobody wants to look at."""

from collections.abc import Callable
from pathlib import Path

from rollcall.report.write import write as write_page
from tests.launch.conftest import Runner
from tests.report.conftest import Looked
from tests.report.rings import Made, write

Look = Callable[..., Looked]
MANY = 1500


def test_lanes_of_many_ranks_are_drawn_together(tmp_path: Path, look: Look) -> None:
    """With more ranks than the screen has lines, several share one; zoomed in, each has its own."""
    ops = [[Made("all_reduce", n, n * 10 + (rank == 7) * 5, n * 10 + 6) for n in range(3)] for rank in range(MANY)]
    shown = look(write_page(write(tmp_path, ops)))
    assert shown.complaints == []
    assert shown.ask("rollcall.timeline.lanes.length") == MANY
    assert not shown.ask("rollcall.timeline.isExact")
    height = shown.ask("rollcall.timeline.models.image.data.image[0].shape[0]")
    assert 100 <= height <= 600
    shown.ask("() => rollcall.timeline.plot.y_range.setv({ start: 20.5, end: -0.5 })")
    shown.frame()
    assert shown.ask("rollcall.timeline.isExact")
    assert "64" not in shown.page.inner_text("#verdict")


def test_phases_show_where_there_is_room(tmp_path: Path, look: Look) -> None:
    """Phases are bands with their names above the lanes; where most are too short to be seen, none is shown."""
    ops = [
        each
        for n in range(2000)
        for each in (
            Made("phase", n, n * 10, n * 10 + 9, phase=4 + n % 2),
            Made("all_reduce", n, n * 10 + 5, n * 10 + 8, phase=4 + n % 2),
        )
    ]
    shown = look(write_page(write(tmp_path, [ops, ops])))
    assert shown.ask("rollcall.timeline.phases.length") == 2000
    assert shown.ask("rollcall.timeline.models.bands.data.left.length") == 0
    shown.ask("() => rollcall.timeline.show(0.001, 0.021)")
    shown.frame()
    assert shown.ask("[...rollcall.timeline.models.heads.data.name]")[:2] == ["forward", "backward"]
    assert shown.complaints == []


def test_one_rank(tmp_path: Path, look: Look) -> None:
    """A run of one rank has one lane, and nobody waits."""
    shown = look(write_page(write(tmp_path, [[Made("all_reduce", 1, 0, 5), Made("barrier", 2, 8, 9)]])))
    assert shown.ask("rollcall.timeline.lanes.length") == 1
    assert shown.ask("[...rollcall.timeline.wait]") == [0, 0]
    assert shown.complaints == []


def test_ranks_that_did_nothing(tmp_path: Path, look: Look) -> None:
    """Rings without ops make a page without bars."""
    shown = look(write_page(write(tmp_path, [[], []])))
    assert shown.ask("rollcall.timeline.start.length") == 0
    assert shown.complaints == []


def test_names_are_never_executed(tmp_path: Path, look: Look) -> None:
    """HTML in the name of a host, a function or a command is text."""
    harm = "<img src=x onerror=harm=1>"
    folder = write(tmp_path / f"run-{harm.replace('/', '')}", [[Made("all_reduce", 1, 0, 5)]] * 2, host=harm)
    (folder / "run.json").write_text(
        '{"outcome": "ok", "command": ["</script><script>harm=1</script>"], "attempts": []}'
    )
    shown = look(write_page(folder, tmp_path / "page.html"))
    assert shown.ask("window.harm") is None
    assert harm in shown.ask("rollcall.timeline.lanes[0].host")
    assert "</script><script>harm=1" in shown.page.inner_text("#facts")
    assert shown.page.locator("img").count() == 0


def test_without_rings(rollcall: Runner) -> None:
    """A run without recordings has no report, and one sentence says why; with --report the run's own outcome counts."""
    rollcall.script("print('here')")
    found = rollcall("run", "-n", 2, "--no-record", "--report", "script.py")
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
