"""Prints what a rehearsal has found, in words or as JSON."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rollcall.explain.terminal import nothing_found
from rollcall.explain.verdict import in_words, to_json
from rollcall.protocol.rank_ranges import ranks_in_words
from rollcall.rehearse import check
from rollcall.rehearse.memory import use
from rollcall.rehearse.network import estimate, traffic
from rollcall.rehearse.rehearsal import Rehearsal, UnknownRead
from rollcall.rehearse.settings import RehearsalSettings
from rollcall.units import in_bytes, in_seconds, plural

_FEW = 8


def heading(settings: RehearsalSettings) -> str:
    each = f"{plural(settings.steps, 'step')} each" if settings.steps else "to their end"
    hosts = f"{plural(settings.hosts, 'host')} × {settings.gpus_per_host}"
    memory = in_bytes(settings.gpu.memory_bytes)
    return f"{plural(settings.world_size, 'rank')} on {hosts} (pretended: {settings.gpu.name}, {memory}), {each}"


def lines(outcome: Rehearsal) -> Iterator[str]:
    done = f"{plural(len(outcome.explanation.run.ranks), 'rank')} rehearsed in {in_seconds(outcome.seconds)}"
    yield f"{done}{_passes(outcome)}; {_kinds(outcome)}"
    yield ""
    for each in outcome.unsupported[:_FEW]:
        yield f"no verdict: {ranks_in_words(each.ranks)} cannot be rehearsed: {each.sentence}"
    if outcome.unsettled:
        yield (
            f"no verdict: after {outcome.passes} passes, {ranks_in_words(outcome.unsettled)} still took values from"
            f" collectives that are not what the others gave; rehearse fewer --steps"
        )
    if not outcome.unsupported and not outcome.unsettled:
        yield from _verdict(outcome)
    yield from use.lines(outcome.memory, outcome.settings.gpu)
    yield from traffic.lines(outcome.traffic)
    yield from estimate.lines(outcome.traffic, outcome.settings.link)
    yield from _assumed(outcome)
    for unknown in outcome.unknowns:
        yield f"unknown   {_in_words(unknown)}"
    for place in outcome.unstable:
        yield f"unstable  {place} tells other ranks what differs each time, such as the time or the number of a process"
    if outcome.comparison is not None:
        yield from check.lines(outcome.comparison, _deciding(outcome))
    yield f"recorded in {outcome.folder.name}: `rollcall explain`, `report` and `export` work on it"


def _passes(outcome: Rehearsal) -> str:
    return f", {outcome.passes} passes" if outcome.passes > 1 else ""


def _kinds(outcome: Rehearsal) -> str:
    kinds = outcome.kinds
    if len(kinds) == 1:
        return "all make the same calls"
    named = "; ".join(ranks_in_words(kind) for kind in kinds[:3])
    return f"{len(kinds)} kinds of ranks by their calls ({named}{'; …' if len(kinds) > 3 else ''})"


def _assumed(outcome: Rehearsal) -> Iterator[str]:
    """With --classes: which ranks did not run, and what is assumed of them."""
    if left_out := sum(map(len, outcome.kinds)) - len(outcome.explanation.run.ranks):
        yield (
            f"assumed   {plural(left_out, 'rank')} did not run: each is taken to do what the ranks before and after it"
            " do that ran on the same GPU of other hosts, and make the same calls; without --classes, all ranks run"
        )


def _same_kind(outcome: Rehearsal, ranks: tuple[int, ...]) -> Iterator[str]:
    """The ranks of a verdict are ranks that ran. If all of a kind that ran are among them, the verdict also holds for
    the other ranks of the kind."""
    ran = outcome.explanation.run.ranks
    for kind in outcome.kinds:
        named = [rank for rank in kind if rank in ran]
        if set(named) <= set(ranks) and len(named) < len(kind):
            yield f"  {ranks_in_words(named)} ran for {ranks_in_words(kind)}, which make the same calls"


def _verdict(outcome: Rehearsal) -> Iterator[str]:
    explanation = outcome.explanation
    if explanation.verdict is None:
        steps = outcome.settings.steps
        until = f" in the first {plural(steps, 'step')}; --steps 0 runs to the end" if outcome.cut else ""
        yield f"{nothing_found(explanation)}{until}"
    for finding in explanation.findings:
        word = "verdict:" if finding is explanation.verdict else "advice:" if finding.is_advice else "also:"
        yield f"{word} {in_words(finding)}"
    if explanation.verdict is None:
        return
    yield from _same_kind(outcome, explanation.verdict.ranks)
    if deciding := _deciding(outcome):
        yield f"  this may depend on values that are not known ({', '.join(deciding)}): --assume {deciding[0]}=VALUE"
    if outcome.unstable:
        yield f"  this may depend on values that differ each time ({', '.join(outcome.unstable[:_FEW])})"
    if outcome.guessed:
        lines = ", ".join(outcome.guessed[:_FEW])
        yield f"  this may depend on what ranks give that were not rehearsed ({lines}): rehearse all ranks"


def _deciding(outcome: Rehearsal) -> list[str]:
    """The first lines that read unknown values by which the program may decide."""
    return [each.place for each in outcome.unknowns if each.decided][:_FEW]


def _in_words(unknown: UnknownRead) -> str:
    who = ranks_in_words(unknown.ranks)
    read = f"{unknown.place} was read {plural(unknown.reads, 'time')} on {who}, as {unknown.assumed}"
    if not unknown.decided:
        return f"{read}, and only printed or computed with: nothing depends on it"
    return f"{read}; the program may decide by it at {', '.join(unknown.decided[:_FEW])}"


def as_json(outcome: Rehearsal) -> str:
    settings = outcome.settings
    found: dict[str, Any] = {
        "world_size": settings.world_size,
        "hosts": settings.hosts,
        "gpus_per_host": settings.gpus_per_host,
        "gpu": asdict(settings.gpu),
        "steps": settings.steps,
        "ranks": list(settings.ranks),
        "passes": outcome.passes,
        "unsettled": list(outcome.unsettled),
        "unstable": list(outcome.unstable),
        "guessed": list(outcome.guessed),
        "kinds": [list(kind) for kind in outcome.kinds],
        "unsupported": [asdict(each) for each in outcome.unsupported],
        "memory": use.as_json(outcome.memory, settings.gpu),
        "traffic": traffic.as_json(outcome.traffic),
        "estimate": estimate.as_json(outcome.traffic, settings.link),
        "unknowns": [asdict(unknown) for unknown in outcome.unknowns],
        "explanation": _without_times(to_json(outcome.explanation)),
        "check": _comparison(outcome),
        "folder": str(outcome.folder),
    }
    return json.dumps(found, indent=2)


def _comparison(outcome: Rehearsal) -> dict[str, Any] | None:
    found = outcome.comparison
    if found is None:
        return None
    differences = [{"rank": each.rank, "number": each.number, "fields": each.fields} for each in found.differences]
    return {"ops": found.ops, "outcome": found.outcome, "why": found.why, "differences": differences}


def _without_times(explanation: dict[str, Any]) -> dict[str, Any]:
    sizes = [
        {key: cost[key] for key in ("name", "ops", "size_bytes")} for cost in explanation["communication"]["by_op"]
    ]
    kept = ("run", "outcome", "verdict", "findings", "problems")
    return {**{key: explanation[key] for key in kept}, "communication": sizes}
