"""Runs in which no rank is in an op, and none can go on."""

from collections.abc import Iterator
from dataclasses import replace

from rollcall.explain.checks.missing_ranks import at_work
from rollcall.explain.evidence import Evidence
from rollcall.explain.findings import Finding, each


def locked_ranks(evidence: Evidence) -> Iterator[Finding]:
    """All ranks that have not ended wait for locks, as their agents have seen: no thread of theirs runs, and nothing
    from outside can wake one. Locks are not recorded, so who holds them is not known."""
    running = [rank for rank in evidence.run.ranks if not evidence.has_ended(rank)]
    seen = {rank: place for rank in running if (place := evidence.seen_now(rank)) is not None}
    if not evidence.run.is_asleep or evidence.blocked or not seen:
        return
    where = each({rank: f"at {place.site}" for rank, place in seen.items()})
    message = f"no rank is in an op, and all that have not ended wait for a lock that nobody releases ({where})"
    sites = tuple(dict.fromkeys(place.site for place in seen.values()))
    outer = tuple(dict.fromkeys(caller for site in sites for caller in site.callers[:_FEW]))
    since_ns = max(map(evidence.ended_ns, running))  # when the last of them was seen to do something
    finding = Finding("busy-rank", tuple(seen), message, sites=(*sites, *outer), since_ns=since_ns)
    yield replace(finding, evidence={"locked": True, **at_work(evidence, running)})


_FEW = 2  # callers of each line: where the program took the way to its lock
