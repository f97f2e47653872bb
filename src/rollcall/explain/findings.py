"""What was noticed in a run. Each finding carries its evidence; nothing is read out of the texts of errors."""

from collections.abc import Callable, Iterator

from rollcall.explain.checks import async_work, call_order, collectives, ddp, deaths, missing_ranks, p2p, stragglers
from rollcall.explain.evidence import View
from rollcall.explain.finding import Finding


def find(view: View) -> list[Finding]:
    """All findings, the most telling first."""
    found = [finding for look in _LOOKS for finding in look(view)]
    return sorted(found, key=lambda finding: (_WEIGHT.get(finding.kind, 50), finding.since_ns))


_LOOKS: tuple[Callable[[View], Iterator[Finding]], ...] = (
    deaths.deaths,
    deaths.cuts,
    missing_ranks.worlds,
    deaths.early_exits,
    collectives.strangers,
    collectives.threads,
    collectives.mismatches,
    missing_ranks.missing,
    p2p.deadlocks,
    p2p.lonely,
    p2p.misfits,
    async_work.overwritten,
    async_work.unwaited,
    ddp.uneven_inputs,
    ddp.unused_parameters,
    call_order.inversions,
    stragglers.latecomers,
)
# The lower, the more it explains: a death explains a wait, a mismatch explains a hang.
_WEIGHT = {
    "network-cut": 0,
    "stopped-rank": 1,
    "world-incomplete": 2,
    "group-incomplete": 3,
    "ddp-model-mismatch": 4,
    "non-member-call": 5,
    "concurrent-calls": 6,
    "order-inversion": 9,
    "order-swap": 10,
    "mismatched-op": 11,
    "mismatched-reduce-op": 12,
    "mismatched-root": 12,
    "mismatched-dtype": 13,
    "mismatched-shape": 14,
    "mismatched-splits": 15,
    "p2p-dtype": 16,
    "p2p-size": 17,
    "ddp-unused-parameter": 8,
    "ddp-uneven-inputs": 18,
    "rank-killed": 19,
    "rank-failed": 20,
    "rank-exited-early": 21,
    "tag-mismatch": 23,
    "wrong-peer": 24,
    "cross-group-deadlock": 25,
    "p2p-against-collective": 26,
    "p2p-deadlock": 27,
    "unmatched-recv": 32,
    "busy-rank": 33,
    "input-stall": 33,
    "buffer-overwritten": 34,
    "unmatched-send": 35,
    "unwaited-work": 36,
    "missing-rank": 38,
    "straggler": 60,
}
