"""The report of a large run: time to write it, its size, and its speed in Chromium."""

import argparse
import shutil
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from contenders import HERE
from jobs import Jobs
from results import Goal, Result, how_it_failed, progress, seconds, table

MAKER = Path(__file__).parent.parent / "big_rings.py"
MOST_WRITE_S, MOST_BYTES, MOST_PAINT_S, MOST_ZOOM_S = 15.0, 25e6, 3.0, 0.2
# From the change of what is in view until it is painted: two frames later at the latest.
ZOOM = """async factor => { const began = performance.now(); rollcall.timeline.zoom(factor);
    await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
    return (performance.now() - began) / 1000; }"""

# Seconds from the beginning of the page's loading.
MARK = "name => performance.getEntriesByName(name)[0].startTime / 1000"


def measure(jobs: Jobs, options: argparse.Namespace) -> Result:
    ops = options.ranks * options.ops
    words = [sys.executable, str(MAKER), "made", str(options.ranks), str(options.ops), "--faults", "straggler"]
    with jobs.start(words) as maker:
        if code := maker.wait(options.timeout_s):
            progress(f"the rings could not be made: {how_it_failed(code)}\n{maker.last_words()}")
            return Result([], [])
        run = (maker.folder / "output.txt").read_text().strip().splitlines()[-1]
        with jobs.start([str(HERE / "rollcall"), "report", str(maker.folder / run), "--out", "page.html"]) as writer:
            began_s = time.monotonic()
            if code := writer.wait(options.timeout_s):
                progress(f"the page could not be written: {how_it_failed(code)}\n{writer.last_words()}")
                return Result([], [])
            write_s = time.monotonic() - began_s
            page = writer.folder / "page.html"
            size_bytes = page.stat().st_size
            progress(f"{ops:,} ops: {seconds(write_s)}, {size_bytes / 1e6:.1f} MB")
            seen = _look(page, options.zooms)
    return _result(ops, options.ranks, write_s, size_bytes, seen)


def _look(page: Path, zooms: int) -> dict[str, Any] | None:
    chromium = shutil.which("chromium")
    if chromium is None:
        progress("no Chromium here: the page is not looked at")
        return None
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        shown = browser.new_page(viewport={"width": 1440, "height": 900})
        shown.goto(page.as_uri())
        shown.wait_for_function("window.rollcall && rollcall.isReady")
        paint_s, move_s = (shown.evaluate(MARK, name) for name in ("painted", "movable"))
        shown.wait_for_timeout(1000)
        half = zooms // 2
        steps = [shown.evaluate(ZOOM, 0.6) for _ in range(half)] + [
            shown.evaluate(ZOOM, 1.7) for _ in range(zooms - half)
        ]
        browser.close()
    return {"paint_s": paint_s, "move_s": move_s, "zoom_s": steps}


def _result(ops: int, ranks: int, write_s: float, size_bytes: int, seen: dict[str, Any] | None) -> Result:
    name = f"{ops:,} ops, {ranks} ranks"
    paint_s = seen["paint_s"] if seen else None
    zoom_s = median(seen["zoom_s"]) if seen else None
    worst_s = max(seen["zoom_s"]) if seen else None
    made = table(f"rollcall report: {name}", "", "here")
    rows = {
        "written": write_s,
        "from opening to the painted timeline": paint_s,
        "… until it can be moved": seen["move_s"] if seen else None,
        "a step of zooming": zoom_s,
        "… the slowest": worst_s,
    }
    for what, value in rows.items():
        made.add_row(what, seconds(value))
    made.add_row("size", f"{size_bytes / 1e6:.1f} MB")
    goals = [
        Goal(f"report of {name}: written", f"≤ {MOST_WRITE_S:g} s", seconds(write_s), write_s <= MOST_WRITE_S),
        Goal("… size", f"≤ {MOST_BYTES / 1e6:g} MB", f"{size_bytes / 1e6:.1f} MB", size_bytes <= MOST_BYTES),
        Goal("… first paint", f"≤ {MOST_PAINT_S:g} s", seconds(paint_s), paint_s and paint_s <= MOST_PAINT_S),
        Goal("… a step of zooming, median", f"≤ {MOST_ZOOM_S:g} s", seconds(zoom_s), zoom_s and zoom_s <= MOST_ZOOM_S),
    ]
    return Result(
        [made], goals, {"ops": ops, "ranks": ranks, "write_s": write_s, "size_bytes": size_bytes, "seen": seen}
    )
