"""The report, in a real browser."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rollcall.explain.evidence import Evidence
from rollcall.explain.loading.load import load
from rollcall.timeline.model import draw
from tests.report.fixtures import OpenedPage
from tests.rollcall_command import Runner

OpenPage = Callable[..., OpenedPage]

# The first op of this name on this lane.
FIND = """([name, lane]) => { const t = rollcall.timeline;
    for (let i = t.first[lane]; i < t.first[lane + 1]; i++) if (t.kinds[t.kind[i]].op === name) return i; }"""


@pytest.fixture(scope="module")
def opened(run: Runner, browser: Any) -> Iterator[OpenedPage]:
    page = OpenedPage(browser, (run.latest() / "report.html").as_uri(), color_scheme="dark")
    yield page
    page.page.close()


@pytest.fixture
def shown(opened: OpenedPage) -> OpenedPage:
    """The page of the run, as if it had just been opened."""
    opened.ask(
        """() => { const t = rollcall.timeline; t.MOST_BARS = 3000; t.show(0, t.duration); t.choose(-1);
            document.getElementById('search').value = ''; rollcall.logbook.show(); }"""
    )
    opened.frame()
    return opened


def test_it_needs_nothing_else(run: Runner, shown: OpenedPage) -> None:
    """The page opens from the disk, gives no warnings and requests nothing else."""
    assert shown.warnings == []
    assert shown.requests == [(run.latest() / "report.html").as_uri()]
    assert "http://" not in shown.ask("[...document.querySelectorAll('[src],link')].map(e => e.outerHTML).join()")


def test_the_verdict_comes_first(shown: OpenedPage) -> None:
    """The verdict stands at the top, with the lines of the program around its site."""
    verdict = shown.page.inner_text("#verdict")
    assert "mismatched-reduce-op — look at rank 2" in verdict
    assert "use the same reduce op on all ranks" in verdict
    assert "dist.all_reduce(loss, op=" in shown.page.locator("#verdict .here").first.inner_text()
    assert "def worst(world, loss):" in shown.page.locator("#verdict pre").first.inner_text()


def test_columns_arrive_as_they_were(run: Runner, shown: OpenedPage) -> None:
    """What the page unpacks is what was packed: each op's time on each lane."""
    bars = draw(Evidence(load(run.latest())))
    zero = bars.entered_ns.min()
    expected = ((bars.begin_ns - zero) // 1000 / 1e6).tolist()
    assert shown.ask("[...rollcall.timeline.start]") == pytest.approx(expected, abs=1e-9)
    assert shown.ask("[...rollcall.timeline.wait]") == pytest.approx((bars.wait_ns // 1000 / 1e6).tolist(), abs=1e-9)
    assert shown.ask("[...rollcall.timeline.first]")[-1] == len(expected)


def _zoom_to(shown: OpenedPage, op: int) -> None:
    """The window must be wide enough that the op is more than a line."""
    shown.ask(
        "op => { const t = rollcall.timeline, d = t.wait[op] + t.busy[op] + 1e-5;"
        " t.show(t.start[op] - d, t.start[op] + 2 * d); }",
        op,
    )
    shown.frame()


def test_hover_tells_the_op(shown: OpenedPage) -> None:
    """Over an op its name, rank, line, shape and bytes are told."""
    shown.page.locator("#timeline").scroll_into_view_if_needed()
    op = shown.ask(FIND, ["all_reduce", 1])
    _zoom_to(shown, op)
    shown.page.mouse.move(*shown.place_of(op, 1))
    tip = shown.page.locator("#tip")
    tip.wait_for(state="visible")
    told = tip.inner_text()
    for expected in (
        "all_reduce · rank 1",
        "train.py:13 in step_with_a_strange_name",
        "float32 [1000], 4.00 kB",
        "SUM",
    ):
        assert expected in told


def test_a_click_lights_up_the_whole_call(run: Runner, shown: OpenedPage) -> None:
    """A click on an op outlines its call on all ranks, and an arrow leads to the last to arrive."""
    table = load(run.latest()).table
    arrived = [
        int(table.entered_ns[table.where(table.is_one_of("all_reduce") & (table.rank == r)).rows[0]]) for r in range(3)
    ]
    last = arrived.index(max(arrived))
    op = shown.ask(FIND, ["all_reduce", 0])
    _zoom_to(shown, op)
    shown.page.locator("#timeline").scroll_into_view_if_needed()
    shown.page.mouse.click(*shown.place_of(op, 0))
    shown.page.wait_for_selector("#chosen h3")
    assert len(shown.ask("rollcall.timeline.models.chosen.data.left")) == 3
    assert shown.ask("[...rollcall.timeline.models.arrow.data.y_end]") == [last]
    told = shown.page.inner_text("#chosen")
    assert "3 of 3 ranks" in told
    assert f"rank {last}" in told.split("was the last to arrive")[0].splitlines()[-1]


def test_a_send_belongs_to_its_receive(shown: OpenedPage) -> None:
    """A send and its receive are one call."""
    send, recv = shown.ask(FIND, ["send", 0]), shown.ask(FIND, ["recv", 1])
    assert shown.ask("([a, b]) => rollcall.timeline.call[a] === rollcall.timeline.call[b]", [send, recv])


def test_zooming_changes_the_detail(shown: OpenedPage) -> None:
    """With more ops in view than can be told apart there is one image; zoomed in, each op is a bar."""
    shown.ask("() => { rollcall.timeline.MOST_BARS = 40; rollcall.timeline.draw(); }")
    assert shown.ask("[rollcall.timeline.isExact, rollcall.timeline.models.bars.data.left.length]") == [False, 0]
    image = "rollcall.timeline.models.image.data"
    assert shown.ask(f"{image}.dw[0]") == pytest.approx(shown.ask("rollcall.timeline.duration"))
    assert shown.ask(f"new Set({image}.image[0]).size") >= 3  # all three colours
    for _ in range(8):
        shown.page.click("#zoom-in")
    shown.frame()
    assert shown.ask("rollcall.timeline.isExact")
    assert shown.ask("rollcall.timeline.models.bars.data.left.length") > 0


def test_a_picture_comes_before_bokeh(shown: OpenedPage) -> None:
    """The timeline is painted before bokeh is read, in all three colours, and bokeh's takes its place."""
    assert shown.ask("performance.getEntriesByType('mark').map(mark => mark.name)")[:2] == ["painted", "movable"]
    assert shown.page.locator("#timeline-plot > canvas").count() == 0
    colours = shown.ask(
        """() => { const place = document.body.appendChild(document.createElement("div"));
            const canvas = rollcall.timeline.preview(place), { width, height } = canvas;
            const all = new Uint32Array(canvas.getContext("2d").getImageData(0, 0, width, height).data.buffer);
            place.remove();
            return new Set(all.filter((pixel) => pixel)).size; }"""
    )
    assert colours == 3


def test_the_wheel_zooms(shown: OpenedPage) -> None:
    """The mouse wheel over the timeline makes the shown time shorter."""
    shown.page.locator("#timeline").scroll_into_view_if_needed()
    width = "rollcall.timeline.plot.x_range.end - rollcall.timeline.plot.x_range.start"
    before = shown.ask(width)
    op = shown.ask(FIND, ["all_reduce", 1])
    shown.page.mouse.move(*shown.place_of(op, 1))
    shown.page.mouse.wheel(0, -400)
    shown.page.wait_for_function(f"{width} < {before}")


def test_search_finds_in_the_logs(shown: OpenedPage) -> None:
    """What is typed into the search is all that is shown, without a terminal's control codes."""
    shown.page.fill("#search", "NEEDLE")
    rows = shown.page.locator("#lines div")
    assert rows.count() == 1
    assert rows.first.inner_text().endswith("needle in the hay ") or "needle in the hay" in rows.first.inner_text()
    assert "\x1b" not in rows.first.inner_text()
    assert "title" not in rows.first.inner_text()


def test_logs_join_the_timeline(shown: OpenedPage) -> None:
    """A line that was printed after a step carries a time between that step's all_reduce and the next one's."""
    shown.page.fill("#search", "step 5 of rank 0")
    shown.page.locator("#lines div").first.click()
    [at] = shown.ask("[...rollcall.timeline.models.moment.data.x]")
    begin, end = shown.ask(
        """() => { const t = rollcall.timeline; const ops = [];
            for (let i = t.first[0]; i < t.first[1]; i++) if (t.kinds[t.kind[i]].op === 'all_reduce') ops.push(i);
            return [t.start[ops[5]] + t.wait[ops[5]] + t.busy[ops[5]], t.start[ops[7]] + t.wait[ops[7]]]; }"""
    )
    assert begin - 0.002 <= at <= end


def test_nothing_that_was_printed_is_executed(shown: OpenedPage) -> None:
    """HTML in a log line is text, and a line of a megabyte is shortened."""
    assert shown.ask("window.harm") is None
    shown.page.fill("#search", "onerror")
    assert "<img src=x" in shown.page.inner_text("#lines")
    shown.page.fill("#search", "xxxxxxxx")
    assert "(1,000,000 bytes)" in shown.page.inner_text("#lines")
    assert len(shown.page.inner_text("#lines")) < 2000


def test_the_table_sorts(shown: OpenedPage) -> None:
    """A click on a heading sorts by its numbers, a second one the other way round."""
    heading = shown.page.locator("#by-site th", has_text="ops").first
    values = "[...document.querySelectorAll('#by-site tbody tr')].map(row => Number(row.cells[3].dataset.value))"
    heading.click()
    assert shown.ask(values) == sorted(shown.ask(values), reverse=True)
    heading.click()
    assert shown.ask(values) == sorted(shown.ask(values))
    ops = "[...rollcall.timeline.kind].map(kind => rollcall.timeline.kinds[kind].op)"
    assert sum(shown.ask(values)) == sum(op != "init" for op in shown.ask(ops))


def test_dark_where_the_system_is_dark(shown: OpenedPage) -> None:
    """The page has the system's colours, follows when they change, and the button changes them, too."""
    background = "getComputedStyle(document.body).backgroundColor"
    dark = shown.ask(background)
    assert sum(map(int, re.findall(r"\d+", dark)[:3])) < 3 * 64
    shown.page.emulate_media(color_scheme="light")
    shown.page.wait_for_function(f"{background} !== '{dark}'")
    shown.page.click("#theme")
    assert shown.ask(background) == dark
    shown.page.emulate_media(color_scheme="dark")
    shown.page.wait_for_function(f"{background} === '{dark}'")
    assert shown.warnings == []


def test_it_prints(run: Runner, shown: OpenedPage, tmp_path: Path) -> None:
    """On paper there are no buttons, and everything else is there."""
    shown.page.emulate_media(media="print")
    assert not shown.page.locator("#theme").is_visible()
    assert not shown.page.locator("#search").is_visible()
    assert shown.page.locator("#verdict").is_visible()
    shown.page.pdf(path=tmp_path / "page.pdf")
    shown.page.emulate_media(media="screen")
    assert (tmp_path / "page.pdf").stat().st_size > 20_000


def test_facts_are_told(run: Runner, shown: OpenedPage) -> None:
    """Command, versions, ranks, hosts and outcome stand in a table."""
    told = shown.page.inner_text("#facts")
    for expected in (
        "run -n 3 --report train.py",
        "torch 2.",
        "3, of which 3 are recorded",
        "one host, one clock",
        "ok",
    ):
        assert expected in told


def test_deaths_and_restarts_are_marks(restarted: Runner, open_page: OpenPage) -> None:
    """A rank that was killed has a cross on its lane, and the next attempt begins at a line."""
    assert restarted("report", "--out", "page.html").code == 0
    shown = open_page(restarted.folder / "page.html")
    deaths: list[dict[str, Any]] = shown.ask("rollcall.timeline.deaths")
    assert [death["lane"] for death in deaths if "SIGKILL" in death["how"]] == [1]
    assert shown.ask("rollcall.timeline.attempts.map(a => a.number)") == [0, 1]
    assert len(shown.ask("[...rollcall.timeline.models.attempts.data.x]")) == 1
    assert shown.ask("rollcall.timeline.lanes.map(lane => lane.alive.length)") == [2, 2, 2]
    assert shown.warnings == []
