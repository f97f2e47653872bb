"""A run in a table: command, hosts, versions, outcome."""

import shlex
from typing import Any

from rollcall.explain.loading.load import Run
from rollcall.explain.verdict import Explanation
from rollcall.units import in_seconds


def lines(facts: dict[str, Any], explanation: Explanation) -> list[tuple[str, str]]:
    """Name and value of each line."""
    run = explanation.run
    hosts = facts.get("hosts") or {}
    names = list(hosts) or sorted({rank.host for rank in run.ranks.values() if rank.host})
    versions = facts.get("versions") or {}
    attempts = facts.get("attempts") or []
    dropped = sum(rank.dropped - rank.unread for rank in run.ranks.values())
    found = [
        ("command", shlex.join(map(str, facts.get("command") or []))),
        ("started", str(facts.get("started", ""))),
        ("took", in_seconds(facts["seconds"]) if isinstance(facts.get("seconds"), int | float) else ""),
        ("outcome", _outcome(facts, explanation)),
        ("ranks", f"{run.world_size}, of which {len(run.ranks)} are recorded"),
        ("attempts", str(len(attempts)) if len(attempts) > 1 else ""),
        (
            "ops",
            f"{len(run.table):,}" + (f", and {dropped:,} older ones that were overwritten" if dropped else ""),
        ),
        ("hosts", _few(names)),
        ("versions", ", ".join(f"{name} {number}" for name, number in versions.items())),
        ("clocks", _clocks(run)),
        ("folder", facts.get("name", run.name)),
    ]
    return [(name, value) for name, value in found if value]


def _outcome(facts: dict[str, Any], explanation: Explanation) -> str:
    code = facts.get("exit_code")
    return explanation.outcome + (f", exit code {code}" if code else "")


def _few(names: list[str], most: int = 12) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _clocks(run: Run) -> str:
    """How far the clocks of the hosts may still be apart."""
    if run.is_from_dumps:
        return "those of the hosts, taken as equal: dumps do not tell the hosts"
    if run.is_rehearsed:
        return "none: the run was rehearsed, and its times are only an order"
    if not run.is_one_clock:
        return "those of the hosts were not compared"
    if not run.clock_error_ns:
        return "one host, one clock"
    return f"aligned to ± {in_seconds(run.clock_error_ns / 1e9)} between hosts: smaller differences mean nothing"
