"""What the driver's library told of the GPUs of ranks while they ran, and what NCCL's own service knew of a hang."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from rollcall.explain.evidence import Evidence
from rollcall.explain.findings import Finding, sites
from rollcall.explain.loading.gpus import RankGpu, Throttled

# A GPU that is throttled for a time costs at most this time. So it must have been throttled for this share of what its
# rank made the others wait, and for that longer than the GPUs of the others.
_MOST_OF_IT = 0.5


def lost_gpus(evidence: Evidence) -> Iterator[Finding]:
    """GPUs that were there when the run began, and then did not answer. A run that ended well did without."""
    if evidence.run.outcome == "ok":
        return
    for rank, gpu in evidence.run.gpus.items():
        if gpu.lost:
            host = evidence.run.ranks[rank].host
            message = f"GPU {gpu.index} of rank {rank} on {host} is lost: {gpu.lost}"
            last = evidence.blocked.get(rank) or evidence.run.ranks[rank].last
            lines = sites([last]) if last else ()
            yield Finding("gpu-lost", (rank,), message, sites=lines, since_ns=_since_ns(evidence, rank, gpu))


def _since_ns(evidence: Evidence, rank: int, gpu: RankGpu) -> int:
    """From when on something may have gone wrong because of it. Others may have waited for the rank before, if it was
    at work: they do so in every step."""
    mine = evidence.blocked.get(rank)
    if mine is not None and mine.entered_ns < gpu.lost_ns:
        return gpu.lost_ns
    waiting = [op.entered_ns for op in evidence.blocked.values() if rank in evidence.waits_for(op)]
    return min([gpu.lost_ns, *waiting])


def why_slow(evidence: Evidence, ranks: Sequence[int], lost_s: float) -> str:
    """Words for ranks whose GPUs were throttled, if that can explain that the others lost so many seconds."""
    gpus = evidence.run.gpus
    others = [_throttled_s(gpu) for rank, gpu in gpus.items() if rank not in ranks]
    usual_s = float(np.median(others)) if others else 0.0
    for rank in ranks:
        gpu = gpus.get(rank)
        if gpu and gpu.throttled and _throttled_s(gpu) - usual_s >= _MOST_OF_IT * lost_s:
            worst = max(gpu.throttled, key=_seconds)
            return f"its GPU {gpu.index} was throttled ({worst.why}) {_from_when(worst, gpu)}"
    return ""


def _from_when(worst: Throttled, gpu: RankGpu) -> str:
    is_to_the_end = worst == gpu.throttled[-1]
    until = "" if is_to_the_end else f" for {_seconds(worst):.0f} s"
    return f"{'since' if is_to_the_end else 'at'} {_clock(worst.at_ns)}{until}"


def _seconds(throttled: Throttled) -> float:
    return (throttled.until_ns - throttled.since_ns) / 1e9


def _throttled_s(gpu: RankGpu) -> float:
    return sum(map(_seconds, gpu.throttled))


def with_errors(evidence: Evidence, finding: Finding) -> Finding:
    """The finding that stopped a run, with the errors of the GPUs of its ranks."""
    if finding.effect != "stopped":
        return finding
    words = []
    for rank in finding.ranks:
        gpu = evidence.run.gpus.get(rank)
        if gpu and gpu.errors:
            at_ns, what = gpu.errors[0]
            more = f" and {len(gpu.errors) - 1} more error{'s' * (len(gpu.errors) > 2)}" if len(gpu.errors) > 1 else ""
            words.append(f"GPU {gpu.index} of rank {rank} reported {what} at {_clock(at_ns)}{more}")
    if evidence.blocked and evidence.run.nccl_ras:
        words.append(f"NCCL says: {evidence.run.nccl_ras[0]}")
    if not words:
        return finding
    return replace(finding, message="; ".join([finding.message, *words]))


def _clock(at_ns: int) -> str:
    """The time of the day, where this is read."""
    return time.strftime("%H:%M:%S", time.localtime(at_ns / 1e9))
