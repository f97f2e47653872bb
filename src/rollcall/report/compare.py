"""The page of `rollcall compare`: one HTML file with everything in it, made of the parts of a run's page."""

from collections.abc import Iterable
from html import escape
from pathlib import Path

from rollcall.errors import cannot_write
from rollcall.explain.compare.comparison import RunComparison, calls_in_words, in_words, runs_in_words, times_in_words
from rollcall.explain.compare.times import TimeDifference
from rollcall.report.excerpt import excerpt
from rollcall.report.page import asset, document, excerpt_html
from rollcall.units import in_seconds

_COLOURS = {"computing": "compute", "communicating": "communicate", "waiting": "wait"}
_MOST_ROWS = 2000


def write(found: RunComparison, target: Path) -> None:
    try:
        target.write_text(render(found), encoding="utf-8", errors="replace")
    except OSError as error:
        raise cannot_write(target, error) from error


def render(found: RunComparison) -> str:
    title = f"{found.first.name} → {found.second.name}"
    nav = "".join(f'<a href="#{place}">{place}</a>' for place in ("runs", "calls", "time", "differences"))
    sections = [_runs(found), _calls(found), _time(found), _differences(found.times.differences)]
    scripts = f"<script>{asset('theme.js')}{asset('tables.js')}theme.begin(); tables.begin();</script>"
    return document(title, f"<nav>{nav}</nav>", sections, [scripts], styles=asset("compare.css"))


def _runs(found: RunComparison) -> str:
    names = ("first", "second")
    rows = "".join(
        f"<tr><td>{name}</td><td>{escape(line)}</td></tr>"
        for name, line in zip(names, runs_in_words(found), strict=True)
    )
    problems = dict.fromkeys((*found.first.problems, *found.second.problems))
    paragraphs = "".join(f'<p class="problem">{escape(problem)}</p>' for problem in problems)
    return (
        f'<section id="runs"><h2>The runs</h2><table class="facts"><tbody>{rows}</tbody></table>{paragraphs}</section>'
    )


def _calls(found: RunComparison) -> str:
    parts = [f'<p class="verdict">{escape(calls_in_words(found))}</p>']
    parting = found.calls.parting
    shown = [
        f"<div><h3>{name}</h3>{excerpt_html(excerpt(op.site))}</div>"
        for name, op in (("first run", parting.first), ("second run", parting.second))
        if op is not None and op.site is not None
    ] if parting else []  # fmt: skip
    if shown:
        parts.append(f'<div class="two">{"".join(shown)}</div>')
    if found.calls.left_out:
        parts.append(f'<p class="hint">{found.calls.left_out:,} calls that one run no longer has are left out.</p>')
    return f'<section id="calls"><h2>Calls</h2>{"".join(parts)}</section>'


def _time(found: RunComparison) -> str:
    legend = "".join(f'<span style="--c: var(--{colour})">{sort}</span>' for sort, colour in _COLOURS.items())
    longest_s = max(sum(_seconds(found, place).values()) for place in (0, 1)) or 1.0
    bars = "".join(_bar(name, _seconds(found, place), longest_s) for place, name in enumerate(("first", "second")))
    return (
        f'<section id="time"><h2>Time</h2><p class="verdict">{escape(times_in_words(found))}</p>'
        '<p class="hint">Where the time went, per rank on average.</p>'
        f'<div class="legend">{legend}</div>{bars}{_table(found.times.whole, "whole")}</section>'
    )


def _seconds(found: RunComparison, place: int) -> dict[str, float]:
    by_sort = {each.sort: (each.first_s, each.second_s)[place] for each in found.times.whole}
    return {sort: by_sort.get(sort, 0.0) for sort in _COLOURS}


def _bar(name: str, seconds: dict[str, float], longest_s: float) -> str:
    parts = "".join(
        f'<i style="width:{each / longest_s:.2%};background:var(--{_COLOURS[sort]})"'
        f' title="{sort}: {in_seconds(each)}"></i>'
        for sort, each in seconds.items()
    )
    return f'<div class="bar"><b>{name}</b><span>{parts}</span><em>{in_seconds(sum(seconds.values()))}</em></div>'


def _differences(differences: Iterable[TimeDifference]) -> str:
    heads = {"line": "By line", "op": "By op", "rank": "By rank", "phase": "By phase"}
    shown = list(differences)
    tables = "".join(
        f"<h3>{head}</h3>{_table(mine, by)}"
        for by, head in heads.items()
        if (mine := [each for each in shown if each.by == by][:_MOST_ROWS])
    )
    return (
        '<section id="differences"><h2>Differences</h2><p class="hint">Seconds per rank. Bold: beyond noise. Click a'
        f" heading to sort.</p>{tables}</section>"
    )


def _table(differences: Iterable[TimeDifference], name: str) -> str:
    heads = ("place", "first", "second", "difference", "noise", "ops, first", "ops, second")
    head = "".join(f'<th class="{"text" if place == 0 else ""}">{each}</th>' for place, each in enumerate(heads))
    body = "".join(map(_row, differences))
    return (
        f'<div class="scroll"><table class="sortable" id="by-{name}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _row(each: TimeDifference) -> str:
    sign = "+" if each.seconds >= 0 else "−"
    cells = [
        (each.first_s, in_seconds(each.first_s)),
        (each.second_s, in_seconds(each.second_s)),
        (each.seconds, f"{sign}{in_seconds(abs(each.seconds))}"),
        (each.noise_s, f"± {in_seconds(each.noise_s)}"),
        (each.first_ops, f"{each.first_ops:,.0f}"),
        (each.second_ops, f"{each.second_ops:,.0f}"),
    ]
    numbers = "".join(f'<td data-value="{value:.9g}">{text}</td>' for value, text in cells)
    kind = ("more" if each.seconds > 0 else "less") if each.is_beyond_noise else ""
    name = each.sort if each.by == "run" else in_words(each)
    return f'<tr class="{kind}"><td class="text">{escape(name)}</td>{numbers}</tr>'
