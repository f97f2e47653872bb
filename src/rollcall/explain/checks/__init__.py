"""What to look for in a run, one file per kind of trouble. Each check takes the evidence and yields findings.

deaths         ranks that failed, were killed or stopped, or exited early
collectives    ranks that are in the same call and disagree
call_order     the same calls in another order
missing_ranks  calls that a rank does not come to
locks          ranks that all wait for locks, and are in no op
p2p            sends and receives that wait in a circle, or have no partner
p2p_waits      what a stuck send or receive waits for
misaddressed   messages to or from a wrong rank, or under a wrong tag
p2p_mismatches sends and receives that differ in size or type
async_work     async ops: buffers that change, waits that are missing
ddp            modules that are wrapped in DDP
stragglers     ranks that keep the others waiting
gpus           what the driver told of the GPUs
device         what only dumps of the Flight Recorder tell
"""

from collections.abc import Callable, Iterator

from rollcall.explain.checks import (
    async_work,
    call_order,
    collectives,
    ddp,
    deaths,
    device,
    gpus,
    locks,
    missing_ranks,
    p2p,
    p2p_mismatches,
    stragglers,
)
from rollcall.explain.evidence import Evidence
from rollcall.explain.findings import Finding

CHECKS: tuple[Callable[[Evidence], Iterator[Finding]], ...] = (
    gpus.lost_gpus,
    deaths.deaths,
    deaths.network_cuts,
    missing_ranks.incomplete_worlds,
    deaths.early_exits,
    collectives.non_member_calls,
    collectives.concurrent_calls,
    collectives.mismatches,
    missing_ranks.missing_ranks,
    missing_ranks.idle_peers,
    locks.locked_ranks,
    p2p.deadlocks,
    p2p.unmatched,
    p2p_mismatches.mismatches,
    async_work.overwritten_buffers,
    async_work.unwaited_work,
    ddp.uneven_inputs,
    ddp.unused_parameters,
    call_order.inversions,
    device.stuck_on_device,
    device.ranks_without_dump,
    stragglers.stragglers,
)


FAULT = "a fault of rollcall"


def find(evidence: Evidence) -> tuple[list[Finding], list[str]]:
    """All findings, in the order of the checks, and a sentence for each check that failed: what the others have found
    helps more than a traceback."""
    findings: list[Finding] = []
    failures: list[str] = []
    for check in CHECKS:
        try:
            findings += check(evidence)
        except Exception as error:
            name = check.__name__.replace("_", " ")
            failures.append(f"{FAULT}: the check for {name} failed ({type(error).__name__}: {error}); please report it")
    return findings, failures
