"""What `rollcall explain` says, as a part of a page: what a notebook shows of `rollcall.explain(run)`."""

from collections.abc import Iterable, Iterator
from html import escape

from rollcall.explain.findings import Finding
from rollcall.explain.terminal import nothing_found
from rollcall.explain.verdict import Explanation, advice, in_one_line, in_words
from rollcall.units import in_bytes, in_seconds

_MOST_ROWS = 16
_WAITS = ("rank", "last in", "made others wait", "waited itself", "of the run")
_COSTS = ("communication", "ops", "bytes", "blocked", "hidden behind computing")


def as_html(explanation: Explanation) -> str:
    return "<div>" + "".join([*_heading(explanation), *_findings(explanation), *_tables(explanation)]) + "</div>"


def _heading(explanation: Explanation) -> Iterator[str]:
    run = explanation.run
    recorded = f"{len(run.ranks)} of {run.world_size} ranks recorded"
    yield f"<p><b>{escape(run.name)}</b>, attempt {run.attempt}: {escape(explanation.outcome)}, {recorded}</p>"
    yield from (f"<p><i>{escape(problem)}</i></p>" for problem in run.problems)


def _findings(explanation: Explanation) -> Iterator[str]:
    verdict = explanation.verdict
    yield _verdict(verdict) if verdict else f"<p>{escape(nothing_found(explanation))}</p>"
    for finding in explanation.findings:
        if finding is not verdict:
            yield f"<p>{'advice' if finding.is_advice else 'also'}: {escape(in_one_line(finding))}</p>"


def _verdict(verdict: Finding) -> str:
    title, *lines = in_words(verdict).split("\n")
    change = advice(verdict)
    lines = lines[: len(lines) - bool(change)]
    text = f"<p><b>verdict: {escape(title)}</b></p><pre>{escape(chr(10).join(line.strip() for line in lines))}</pre>"
    return text + (f"<p>→ {escape(change)}</p>" if change else "")


def _tables(explanation: Explanation) -> Iterator[str]:
    if explanation.run.is_rehearsed:
        return
    waits, costs = explanation.waits, explanation.costs
    ranks = sorted(explanation.run.ranks, key=lambda rank: -waits.caused_s[rank])[:_MOST_ROWS] if waits.calls else []
    yield _table(
        f"who waited for whom, in {in_seconds(waits.run_s)} from the first op to the last",
        _WAITS,
        (
            (
                str(rank),
                f"{waits.last_in[rank]} of {waits.calls} calls",
                in_seconds(waits.caused_s[rank]),
                in_seconds(waits.suffered_s[rank]),
                f"{waits.share(waits.suffered_s[rank]):.0%}",
            )
            for rank in sorted(ranks)
        ),
    )
    yield _table(
        f"where communication takes its time; {costs.overlap:.0%} of it is hidden",
        _COSTS,
        (
            (
                cost.name,
                f"{cost.ops:,}",
                in_bytes(cost.size_bytes),
                in_seconds(cost.blocked_s),
                in_seconds(cost.hidden_s),
            )
            for cost in (*costs.by_op, *costs.by_site)[:_MOST_ROWS]
        ),
    )


def _table(title: str, columns: Iterable[str], rows: Iterable[tuple[str, ...]]) -> str:
    lines = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows]
    if not lines:
        return ""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><caption>{escape(title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
