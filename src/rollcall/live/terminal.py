"""`rollcall watch`: a table of ranks that refreshes in place; ranks that hold up others come first."""

import re
import shlex
import time
from collections import Counter
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from rollcall.errors import UsageError
from rollcall.live.reader import LiveRun
from rollcall.live.state import Observer, RankNow
from rollcall.protocol.rank_ranges import list_of
from rollcall.units import in_bytes, in_seconds

_COLOURS = {"waiting": "yellow", "communicating": "blue", "computing": "", "ended": "dim", "unseen": "dim"}
_ROOM_LINES = 5  # around the table
_COLUMNS = ("rank", "host", "state", "op", "for", "waits for", "holds up", "ops/s", "MB/s", "CPU", "memory")
_LEFT = ("host", "state", "op", "waits for")
_MOST_CELL = 48
_GAP = "  "
_UNSEEN_S = 3.0  # for hosts without a shared disk to send their rings
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")  # control characters


def watch(folder: Path, every_s: float, once: bool) -> None:
    """Shows the table until the run is over, or Ctrl-C. Without a terminal, the table is printed once."""
    run = LiveRun(folder)
    run.refresh()
    check_recorded(run)
    observer = Observer(run)
    console = Console(highlight=False)
    if once or not console.is_terminal:
        console = console if console.is_terminal else Console(highlight=False, width=160)
        console.print(_page(run, _look_once(observer, every_s), 10_000))
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while not run.is_over:
            live.update(_page(run, observer.look(), console.height - _ROOM_LINES), refresh=True)
            time.sleep(every_s)
    console.print(_page(run, observer.look(), console.height - _ROOM_LINES))
    console.print(
        f"the run is over: [bold]{escape(str(run.facts.get('outcome', 'killed')))}[/]; `rollcall report` shows it all"
    )


def _look_once(observer: Observer, every_s: float) -> list[RankNow]:
    """Speeds need two looks, and other hosts some time to answer."""
    observer.look()
    until_s = time.monotonic() + _UNSEEN_S
    while True:
        time.sleep(min(every_s, 0.5))
        ranks = observer.look()
        if time.monotonic() > until_s or not any(each.state == "unseen" for each in ranks):
            return ranks


def check_recorded(run: LiveRun) -> None:
    if not run.rings and (run.is_over or not (run.facts.get("plan") or {}).get("record", True)):
        raise UsageError(
            f"{run.folder.name} has no rings, so there is nothing to watch: it ran with --no-record, or is over"
            f" before its ranks began"
        )


def _page(run: LiveRun, ranks: list[RankNow], lines: int) -> RenderableType:
    if not ranks:
        return Text(f"{run.folder.name}: no rank has begun yet")
    shown = ranks[: max(lines, 1)]
    more = [Text(f"… and {len(ranks) - len(shown)} more", style="dim")] if len(shown) < len(ranks) else []
    return Group(_summary(run, ranks), Text(""), _table(shown), *more)


def _table(ranks: list[RankNow]) -> Text:
    """Laid out by hand, one styled text per line: rich's own table is too slow for every second."""
    rows = [list(_COLUMNS), *map(_cells, ranks)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    alarm_at = sum(width + len(_GAP) for width in widths[: _COLUMNS.index("holds up")])
    alarm_end = alarm_at + widths[_COLUMNS.index("holds up")]
    text = Text(no_wrap=True, overflow="ellipsis")
    for number, row in enumerate(rows):
        cells = [
            cell.ljust(width) if name in _LEFT else cell.rjust(width)
            for name, cell, width in zip(_COLUMNS, row, widths, strict=True)
        ]
        begin = len(text)
        text.append(_GAP.join(cells) + "\n", _COLOURS[ranks[number - 1].state] if number else "bold")
        if number and ranks[number - 1].holds_up:
            text.stylize("bold red", begin + alarm_at, begin + alarm_end)
    text.right_crop(1)
    return text


def _summary(run: LiveRun, ranks: list[RankNow]) -> Text:
    counts = Counter(each.state for each in ranks)
    states = ", ".join(f"{count} {state}" for state, count in counts.most_common())
    ops, speed = sum(each.ops_per_s for each in ranks), sum(each.mb_per_s for each in ranks)
    text = Text(run.folder.name, style="bold")
    text.append(
        f"  attempt {run.attempt} · {shlex.join(map(str, run.facts.get('command') or []))}\n", style="not bold dim"
    )
    text.append(f"{len(ranks)} ranks: {states} · {ops:,.0f} ops/s · {speed:,.1f} MB/s", style="not bold")
    return text


def _cells(each: RankNow) -> list[str]:
    is_here = each.state not in ("ended", "unseen")
    cells = [
        str(each.rank),
        each.host,
        each.state,
        each.doing,
        in_seconds(each.since_s) if is_here else "",
        list_of(list(each.waits_for)),
        str(each.holds_up or ""),
        f"{each.ops_per_s:,.0f}" if is_here else "",
        f"{each.mb_per_s:,.1f}" if is_here else "",
        f"{each.cpu_percent:.0f} %" if each.cpu_percent is not None and is_here else "",
        in_bytes(each.memory_bytes) if each.memory_bytes is not None and is_here else "",
    ]
    return [_CONTROL.sub("", cell)[:_MOST_CELL] for cell in cells]
