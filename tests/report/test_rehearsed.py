"""The page of a rehearsal."""

from collections.abc import Callable
from pathlib import Path

from tests.report.fixtures import OpenedPage
from tests.rollcall_command import Runner

PROGRAM = Path(__file__).parents[1] / "rehearse" / "programs" / "memory.py"


def test_memory_over_time_and_traffic_between_hosts(tmp_path: Path, open_page: Callable[..., OpenedPage]) -> None:
    """The peak has its line, each host sends to the next, and nothing is said of times."""
    runner = Runner(tmp_path)
    found = runner("rehearse", "-n", 4, "--gpus-per-host", 2, "--report", PROGRAM)
    assert found.code == 0, found.err
    shown = open_page(runner.latest() / "report.html")
    assert shown.warnings == []
    peak = PROGRAM.read_text().split("# PEAK")[0].count("\n") + 1
    heading = shown.page.inner_text("#memory h3")
    assert heading.startswith("ranks 0-3: peak ")
    assert heading.endswith(f" at memory.py:{peak} in backward")
    plot = "Bokeh.documents.flatMap(d => d.roots()).find(r => r.name === '{}')"
    last = shown.ask(
        f"() => {{ const data = {plot.format('memory')}.renderers[0].data_source.data;"
        " return Object.fromEntries(['parameters', 'optimizer'].map(name => [name, [...data[name]].at(-1)])); }"
    )
    assert last == {"parameters": 2**22 / 2**30, "optimizer": 2**22 / 2**30}  # 1,024 × 1,024 floats; SGD's momentum
    cells = f"{plot.format('hosts')}.renderers[0].data_source.data"
    assert shown.ask(f"() => [...{cells}.words]") == ["host 0 → host 1: 6.29 MB", "host 1 → host 0: 6.29 MB"]
    assert shown.page.locator("#waits").count() == 0
    assert "waited" not in shown.page.inner_text("main")
