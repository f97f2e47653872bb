"""The page: one HTML file with everything in it, which loads nothing else.

Nothing that a run printed or named is executed: it is escaped here, and the scripts insert it as text. Sections are
functions, not templates of Jinja2: the live page sends each of them by itself. bokeh is imported inside functions:
`rollcall compare` writes a page without it.
"""

import json
from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from rollcall.explain.costs import Cost, Speed
from rollcall.explain.findings import Finding
from rollcall.explain.verdict import advice
from rollcall.explain.waits import Waits
from rollcall.protocol.rank_ranges import ranks_in_words
from rollcall.report import rehearsed
from rollcall.report.excerpt import Excerpt, excerpt
from rollcall.report.logs import LogLine
from rollcall.report.rehearsed import RehearsedResults
from rollcall.timeline.encode import deflate
from rollcall.units import in_bytes, in_seconds, plural

_SCRIPTS = ("columns.js", "lanes.js", "theme.js", "timeline.js", "samples.js", "tables.js", "page.js")
_MOST_FINDINGS = 20


@dataclass(frozen=True)
class Results:
    """What explain found out about the last attempt. On a live page it changes."""

    outcome: str
    verdict: Finding | None
    findings: Sequence[Finding]
    problems: Sequence[str]
    facts: Sequence[tuple[str, str]]
    waits: Waits
    costs: Sequence[Cost]
    speeds: Sequence[Speed]
    rehearsed: RehearsedResults | None = None  # then times and waits mean nothing, and are not shown


@dataclass(frozen=True)
class Content:
    """All that a page shows."""

    name: str
    results: Results
    logs: Sequence[LogLine]
    logs_left_out: int
    wall_ns: int  # of the beginning of the timeline
    lanes: int
    seconds: float
    timeline: dict[str, Any]
    # PNGs in the folder of the run, such as the lab's: name, content, caption
    pictures: Sequence[tuple[str, bytes, str]] = ()


def render(content: Content, script: str = "") -> str:
    """The page. `script` is added to its own scripts, for a live page."""
    results = content.results
    body = [
        _verdict(results),
        _pictures(content.pictures),
        _timeline(results.rehearsed is None),
        *([_waits()] if results.rehearsed is None else _rehearsed(results.rehearsed)),
        _traffic(results),
        _logs(content),
        _facts(results.facts),
    ]
    lanes = [{"rank": lane["rank"], "host": lane["host"]} for lane in content.timeline["meaning"]["lanes"]]
    data = {
        "lanes-data": lanes,
        "timeline-data": content.timeline,
        "timeline-figure": _timeline_figure(content),
        "figures-data": figures_of(results),
        "logs-data": _encoded_logs(content),
    }
    end = [
        "<div id=tip role=tooltip></div>",
        *(f'<script type="application/json" id="{name}">{_json(value)}</script>' for name, value in data.items()),
        # As text at first: parsing bokeh takes longer than all the rest, and the preview is painted before.
        *(f'<script type="text/plain" class="bokeh">{text}</script>' for text in _bokeh()),
        f"<script>{''.join(map(asset, _SCRIPTS))}{script}</script>",
    ]
    return document(content.name, _header(content), body, end, kind="rehearsed" if results.rehearsed else "run")


def document(
    title: str, header: str, sections: Iterable[str], end: Iterable[str], styles: str = "", kind: str = ""
) -> str:
    """A whole HTML file, for this page and that of `rollcall compare`. `end`: data and scripts below the sections."""
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)} — rollcall</title>",
            f'<style>{asset("page.css")}{styles}</style></head><body class="{kind}">',
            f'<header><h1>{escape(title)}</h1>{header}<button id="theme" title="light or dark">◐</button></header>',
            f"<main>{''.join(sections)}</main><footer>made by rollcall; this file needs nothing else</footer>",
            *end,
            "</body></html>",
        ]
    )


def parts(results: Results) -> dict[str, Any]:
    """What changes on a page during its run: sections as HTML, and figures."""
    sections = {"verdict": _verdict(results), "traffic": _traffic(results), "facts": _facts(results.facts)}
    return {"outcome": results.outcome, "sections": sections, "figures": figures_of(results)}


@cache
def _bokeh() -> list[str]:
    from bokeh.resources import Resources

    return list(Resources(mode="inline", components=["bokeh"]).js_raw)


def _timeline_figure(content: Content) -> Any:
    from bokeh.embed import json_item
    from bokeh.models import CustomJS

    from rollcall.report import figures

    has_times = content.results.rehearsed is None
    plot = figures.timeline(content.lanes, content.seconds, bool(content.timeline["meaning"]["phases"]), has_times)
    for event, handler in (("mousemove", "onMove"), ("mouseleave", "onLeave"), ("tap", "onTap")):
        plot.js_on_event(event, CustomJS(code=f"rollcall.timeline.{handler}?.(cb_obj)"))
    return json_item(plot)


def figures_of(results: Results) -> dict[str, Any]:
    """All figures but the timeline, by the id of their place."""
    from bokeh.embed import json_item

    from rollcall.report import figures, heat_map, rehearsed_figures

    if results.rehearsed is not None:
        shown = rehearsed_figures.by_place(results.rehearsed)
    else:
        shown = {
            "matrix-plot": heat_map.waits(results.waits),
            "shares-plot": figures.shares(results.waits),
            "what-if-plot": figures.what_if(results.waits),
        }
        if results.speeds:
            shown["sizes-plot"] = figures.sizes(results.speeds)
    return {place: json_item(figure) for place, figure in shown.items()}


def _json(value: Any) -> str:
    """JSON that can stand in a script element: nothing in it ends the element."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


@cache
def asset(name: str) -> str:
    """A file of assets/."""
    return files("rollcall.report").joinpath("assets", name).read_text(encoding="utf-8")


def _encoded_logs(content: Content) -> str:
    lines = [
        {
            "rank": line.rank,
            "at": round((line.time_ns - content.wall_ns) / 1e9, 4) if line.time_ns else None,
            "text": line.text,
        }
        for line in content.logs
    ]
    return deflate(json.dumps(lines, ensure_ascii=False).encode("utf-8", "replace"))


def _header(content: Content) -> str:
    links = {
        "verdict": "verdict",
        "timeline": "timeline",
        **({"memory": "memory", "hosts": "hosts"} if content.results.rehearsed else {"waits": "waits"}),
        "traffic": "communication",
        "logs": "logs",
        "facts": "run",
    }
    outcome = content.results.outcome
    nav = "".join(f'<a href="#{place}">{name}</a>' for place, name in links.items())
    return f'<span class="pill {escape(outcome)}">{escape(outcome)}</span><nav>{nav}</nav>'


def _verdict(results: Results) -> str:
    is_running = results.outcome == "running"
    rest = [finding for finding in results.findings if finding is not results.verdict][:_MOST_FINDINGS]
    nothing = f'<p class="verdict">No finding{" so far" * is_running}: the calls of all ranks match.</p>'
    parts = [_finding(results.verdict)] if results.verdict else [nothing]
    if rest:
        kind = "advice" if all(finding.is_advice for finding in rest) else "other"
        summary = f"{plural(len(rest), f'{kind} finding')}"
        parts.append(f"<details><summary>{summary}</summary>{''.join(map(_finding, rest))}</details>")
    parts += [f'<p class="problem">{escape(problem)}</p>' for problem in results.problems]
    return f'<section id="verdict"><h2>Verdict</h2>{"".join(parts)}</section>'


def _finding(finding: Finding) -> str:
    look = f"look at {ranks_in_words(finding.ranks)}" if finding.ranks else ""
    parts = [f'<p class="verdict"><b>{escape(finding.kind)}</b>{" — " if look else ""}{escape(look)}</p>']
    parts.append(f"<p>{escape(finding.message)}</p>")
    if change := advice(finding):
        parts.append(f'<p class="advice">{escape(change)}</p>')
    excerpts = [excerpt(site) for site in dict.fromkeys(finding.sites)]
    if excerpts:
        parts.append(f'<div class="excerpts">{"".join(map(excerpt_html, excerpts[:4]))}</div>')
    return "".join(parts)


def excerpt_html(found: Excerpt) -> str:
    if not found.lines:
        return f'<figure class="excerpt"><figcaption>{escape(found.title)} (source not found)</figcaption></figure>'
    lines = "".join(
        f'<span class="{"here" if is_here else ""}"><i>{number}</i>{escape(text)}</span>'
        for number, text, is_here in found.lines
    )
    return f'<figure class="excerpt"><figcaption>{escape(found.title)}</figcaption><pre>{lines}</pre></figure>'


def _timeline(has_times: bool) -> str:
    colours = {"computing": "compute", "communicating": "communicate", "waiting": "wait"}
    legend = "".join(f'<span style="--c: var(--{name})">{words}</span>' for words, name in colours.items())
    how = ", with an arrow to the rank that arrived last" if has_times else "; nothing is known of their times"
    buttons = {"zoom-in": "+", "zoom-out": "−", "zoom-all": "all"}
    zoom = "".join(f'<button id="{name}">{sign}</button>' for name, sign in buttons.items())
    return (
        f'<section id="timeline"><h2>Timeline</h2><div class="legend">{legend * has_times}'
        f'<div class="zoom">{zoom}</div></div>'
        '<p class="hint">One row per rank. The mouse wheel zooms, dragging moves. Click an op to see its call on all'
        f" ranks{how}.</p>"
        '<div id="timeline-plot"></div><div id="chosen"></div></section>'
    )


def _waits() -> str:
    return (
        '<section id="waits"><h2>Who waits for whom</h2><div class="two"><div>'
        '<p class="hint">Seconds that the rank on the left waited for the rank above.</p>'
        '<div id="matrix-plot"></div></div><div id="shares-plot"></div></div><h3>What if?</h3>'
        '<p class="hint">Run time if this rank had never been the last to arrive.</p>'
        '<div id="what-if-plot"></div></section>'
    )


def _rehearsed(found: RehearsedResults) -> list[str]:
    return [rehearsed.memory_section(found), rehearsed.traffic_section(found)]


def _traffic(results: Results) -> str:
    heads = (
        ("op", "text"),
        ("site", "text"),
        ("group", "text"),
        ("ops", ""),
        ("bytes", ""),
        ("waited", "time"),
        ("communicated", "time"),
        ("mean", "time"),
    )
    head = "".join(f'<th class="{kind}">{name}</th>' for name, kind in heads)
    body = "".join(map(_cost_row, results.costs))
    plot = (
        '<h3>Size against bandwidth</h3><div id="sizes-plot"></div>'
        if results.speeds and results.rehearsed is None
        else ""
    )
    return (
        '<section id="traffic"><h2>Communication</h2><p class="hint">By op and line of the program, of all ranks'
        ' together. Click a heading to sort.</p><div class="scroll"><table class="sortable" id="by-site">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{plot}</section>"
    )


def _cost_row(cost: Cost) -> str:
    text = "".join(f'<td class="text">{escape(each)}</td>' for each in (cost.name, cost.site, cost.group))
    seconds = (cost.waiting_s, cost.communicating_s, cost.mean_s)
    numbers = _cell(cost.ops, f"{cost.ops:,}") + _cell(cost.size_bytes, in_bytes(cost.size_bytes))
    return f"<tr>{text}{numbers}{''.join(_cell(each, in_seconds(each), 'time') for each in seconds)}</tr>"


def _cell(value: float, text: str, kind: str = "") -> str:
    return f'<td class="{kind}" data-value="{value:.9g}">{text}</td>'


def _logs(content: Content) -> str:
    left_out = f" {content.logs_left_out:,} older lines are only in the files." if content.logs_left_out else ""
    return (
        '<section id="logs"><h2>Logs</h2><p class="hint">Click a line to mark its time in the timeline.'
        f'{left_out}</p><div class="logbar"><select id="log-rank" aria-label="rank"></select>'
        '<input id="search" type="search" placeholder="search" aria-label="search">'
        '<span id="log-count" class="hint"></span></div><div id="lines"></div></section>'
    )


def _pictures(pictures: Sequence[tuple[str, bytes, str]]) -> str:
    if not pictures:
        return ""
    shown = "".join(
        (f"<p>{escape(caption)}</p>" if caption else "")
        + f'<img alt="{escape(name)}" style="max-width:100%" src="data:image/png;base64,{b64encode(data).decode()}">'
        for name, data, caption in pictures
    )
    return f'<section id="pictures"><h2>Pictures</h2>{shown}</section>'


def _facts(facts: Iterable[tuple[str, str]]) -> str:
    rows = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in facts)
    return f'<section id="facts"><h2>The run</h2><table class="facts"><tbody>{rows}</tbody></table></section>'
