"""What `rollcall explain` says, as a part of a page: what a notebook shows of `rollcall.explain(run)`."""

from collections.abc import Iterator
from html import escape

from rollcall.explain.findings import Finding
from rollcall.explain.terminal import costs_table, nothing_found, waits_table
from rollcall.explain.verdict import Explanation, advice, in_one_line, in_words

_MOST_ROWS = 16  # of a table in a notebook: more would push the next cell out of sight


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
    for table in (waits_table(explanation), costs_table(explanation)):
        if rows := table.shown(_MOST_ROWS):
            head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
            body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
            caption = escape(table.title.removesuffix(":"))
            yield f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
