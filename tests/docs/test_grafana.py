"""The dashboard shows what a run serves."""

import json
import re
from pathlib import Path

from rollcall.live.metrics.collector import Collector
from rollcall.train.reporting.progress_file import ProgressFile
from tests.docs.pages import REPOSITORY
from tests.report.rings import FakeOp, write

DASHBOARD = json.loads((REPOSITORY / "docs" / "grafana.json").read_text())


def test_the_dashboard_and_its_page_name_the_metrics_that_there_are(tmp_path: Path) -> None:
    """All of them, and no others."""
    progress = ProgressFile(True, {"ROLLCALL_RUN": str(tmp_path)})
    progress._last_s -= 2
    progress.write(1, 0, 10)
    write(tmp_path, [[FakeOp("barrier", 1, 1, 2)], [FakeOp("barrier", 1, 1, 2)]])
    served = {f"rollcall_{metric.name}" for metric in Collector(tmp_path).collect()}
    asked = {name for panel in DASHBOARD["panels"] for name in re.findall(r"rollcall_\w+", panel["targets"][0]["expr"])}
    described = set(re.findall(r"`(rollcall_\w+)", (REPOSITORY / "docs" / "metrics.md").read_text()))
    assert asked == served
    assert described == served
