"""Ranks that failed, were killed or stopped, or exited early."""

import signal
from collections.abc import Iterator
from dataclasses import replace

from rollcall.explain import source
from rollcall.explain.checks import ddp
from rollcall.explain.ends import exited_badly, failed_by_itself, was_killed
from rollcall.explain.evidence import Evidence
from rollcall.explain.findings import Finding, of_call, wait_in, where
from rollcall.explain.loading.load import Rank
from rollcall.explain.loading.table import Op, Site
from rollcall.explain.matching import Call
from rollcall.explain.skipped_calls import first_skipped_call
from rollcall.protocol.rank_ranges import ranks_in_words


def deaths(evidence: Evidence) -> Iterator[Finding]:
    for rank in evidence.run.ranks.values():
        if was_stopped(evidence, rank):
            yield _stopped(evidence, rank)
        elif failed_by_itself(evidence, rank):
            sites = rank.error_site.chain[:3] if rank.error_site else ()
            message = f"rank {rank.number} failed at {rank.error_site}: {rank.error}"
            yield Finding("rank-failed", (rank.number,), message, sites=sites, since_ns=rank.ended_ns)
        elif rank.handled is not None and rank.number in evidence.failing:
            op = evidence.table.get(rank.handled.row)
            failed = f"rank {rank.number} failed at {rank.handled.site}: {rank.handled.error}"
            message = f"{failed}; since then it waits in {where(op)}"
            sites = (*(rank.handled.site.chain[:3] if rank.handled.site else ()), *([op.site] if op.site else []))
            yield Finding("rank-failed", (rank.number,), message, sites=sites, since_ns=op.entered_ns)
        elif was_killed(rank):
            yield _killed(evidence, rank)
        elif exited_badly(evidence, rank):
            message = f"rank {rank.number} exited with code {rank.exit_code} at {rank.exit_site}"
            sites = rank.exit_site.chain[:3] if rank.exit_site else ()
            code = {"exit_code": rank.exit_code}
            yield Finding(
                "rank-exited-early", (rank.number,), message, sites=sites, since_ns=rank.ended_ns, evidence=code
            )


def _killed(evidence: Evidence, rank: Rank) -> Finding:
    """Says who sent the signal, or at least where the rank was then."""
    name = _name(-rank.exit_code) if rank.exit_code else ""
    sent = _sender(evidence, rank, -(rank.exit_code or 0))
    if sent is not None:
        place: Site | None = sent.site
        message = f"rank {rank.number} was killed by {name}; {_who_sent(sent, rank)} sent the signal at {place}"
    else:
        place = rank.stack[0] if rank.stack else evidence.seen_last(rank.number)
        message = f"rank {rank.number} was killed by {name}; it was last seen at {place or 'its start'}"
    users = rank.own_stack[:3] if sent is None else ()
    sites = users or ((place, *place.callers[:2]) if place else ())
    since_ns = sent.entered_ns if sent else evidence.ended_ns(rank.number)
    return Finding("rank-killed", (rank.number,), message, sites=sites, since_ns=since_ns)


def _stopped(evidence: Evidence, rank: Rank) -> Finding:
    sent = _sender(evidence, rank, signal.SIGSTOP)
    message = rank.cause or "was stopped (SIGSTOP)"
    place = evidence.seen_last(rank.number)
    sites = (place, *place.callers[:2]) if place else ()
    if sent is not None and sent.site is not None:
        message += f"; {_who_sent(sent, rank)} sent the signal at {sent.site}"
        sites = (sent.site, *sites) if sent.site not in sites else sites
    since_ns = sent.entered_ns if sent else evidence.ended_ns(rank.number)
    return Finding("stopped-rank", (rank.number,), f"rank {rank.number} {message}", sites=sites, since_ns=since_ns)


def was_stopped(evidence: Evidence, rank: Rank) -> bool:
    """The launcher saw that, or it got SIGSTOP and no SIGCONT, and did nothing since."""
    if rank.cause:
        return True
    if rank.has_ended and rank.exit_code is not None:
        return False
    sent = _sender(evidence, rank, signal.SIGSTOP)
    if sent is None or _sender(evidence, rank, signal.SIGCONT) is not None:
        return False
    return rank.last is None or max(rank.last.entered_ns, rank.last.completed_ns) <= sent.entered_ns + _SOON_NS


_SOON_NS = 50_000_000  # a signal takes effect when the rank is scheduled next: until then it may end an op


def _sender(evidence: Evidence, rank: Rank, number: int) -> Op | None:
    """The op in which a rank sent it this signal."""
    for op in reversed(evidence.signals):
        # Process ids are a host's own.
        if (op.tag, op.peer) == (number, rank.pid) and evidence.run.ranks[op.rank].host == rank.host:
            return op
    return None


def _who_sent(sent: Op, rank: Rank) -> str:
    return "it" if sent.rank == rank.number else f"rank {sent.rank}"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def network_cuts(evidence: Evidence) -> Iterator[Finding]:
    """Hosts to which the network was cut."""
    cut = [lost for lost in evidence.run.lost if lost.is_cut]
    if cut:
        gone = [rank for lost in cut for rank in lost.ranks]
        last = _last_ops(evidence)
        waiting = [op for rank, op in last.items() if rank not in gone] or list(last.values())
        message = "; ".join(f"host {lost.host} with {ranks_in_words(lost.ranks)} {lost.why}" for lost in cut)
        sites = tuple(dict.fromkeys(op.site for op in waiting if op.site is not None))[:3]
        hosts = {"hosts": [lost.host for lost in cut]}
        yield Finding("network-cut", tuple(gone), f"the network is cut: {message}", sites=sites, evidence=hosts)


def _last_ops(evidence: Evidence) -> dict[int, Op]:
    """By rank: the op that it is blocked in, or its last one."""
    return {rank.number: rank.last for rank in evidence.run.ranks.values() if rank.last is not None} | evidence.blocked


def early_exits(evidence: Evidence) -> Iterator[Finding]:
    """Ranks that exited with 0 while others are in calls that need them, or from a thread while they were in an op
    themselves."""
    stuck = evidence.calls.any(evidence.is_stuck | evidence.table.has_failed)
    for call in evidence.calls.where(stuck):
        gone = [rank for rank in call.group.ranks if _left(evidence, call, rank)]
        waiting = [op for op in call.ops.values() if op.rank not in gone and _was_stopped_by(evidence, op)]
        if not gone or not waiting or set(gone) & set(ddp.without_gradients(evidence, call)):
            continue
        if not _is_in_circle(evidence, call, gone):
            yield _explain_exit(evidence, call, gone, waiting)
            return


def _is_in_circle(evidence: Evidence, call: Call, gone: list[int]) -> bool:
    """Whether another rank is missing, too, that waits for one in this call and not for these: it was out of step
    before they ended."""
    others = [rank for rank in call.missing if rank not in gone and rank in evidence.held]
    waited_for = [set(evidence.waits_for(evidence.held[rank])) for rank in others]
    return any(ranks & set(call.ops) and not ranks & set(gone) for ranks in waited_for)


def _was_stopped_by(evidence: Evidence, op: Op) -> bool:
    """Not by an op that raised, if its rank ended well: then the program has dealt with the error."""
    return op.is_blocked or (op.is_failed and evidence.run.ranks[op.rank].exit_code != 0)


def _left(evidence: Evidence, call: Call, number: int) -> bool:
    rank = evidence.run.ranks.get(number)
    if rank is None or rank.exit_code != 0:
        return False
    return number not in call.ops or (call.ops[number].completed_ns == 0 and rank.exit_site is not None)


def way_out(rank: Rank, waiting: Op) -> Site | None:
    """The line at which a rank exited in the middle of the program: not `sys.exit(main())` around all of it, which the
    others are in, too."""
    chain = waiting.site.chain if waiting.site else ()
    is_around = rank.exit_site is not None and any(
        (site.file, site.line) == (rank.exit_site.file, rank.exit_site.line) for site in chain
    )
    return None if is_around else rank.exit_site


def _explain_exit(evidence: Evidence, call: Call, gone: list[int], waiting: list[Op]) -> Finding:
    """Either it left in the middle of the program, or only this call is missing from it."""
    found = [evidence.run.ranks[rank] for rank in gone]
    exits = tuple(site for rank in found if (site := way_out(rank, waiting[0])) is not None)
    first = () if exits else first_skipped_call(evidence, call, waiting[0].rank, gone[0]) or ()
    done = [rank for rank in call.missing if rank not in evidence.held and rank not in evidence.died_by_themselves]
    if not exits and len(waiting) < len(done):  # most ranks came to the end of the program: these few make a call more
        odd = [op.rank for op in waiting]
        message = f"{wait_in(waiting)}, which {ranks_in_words(gone)} did not make: they have ended"
        return of_call("missing-rank", call, odd, message, [*first, *waiting])
    made_it = (evidence.table.rank == gone[0]) & (evidence.table.site == evidence.table.site[waiting[0].row])
    kind = "rank-exited-early" if exits or made_it.any() else "missing-rank"
    message = f"{ranks_in_words(gone)} exited while {wait_in(waiting)}"
    finding = of_call("missing-rank" if first else kind, call, gone, message, [*first, *waiting])
    ways_out = source.ways_out(found[0].last.site, waiting[0].site) if found[0].last else ()
    return replace(finding, sites=(*exits, *finding.sites, *ways_out))
