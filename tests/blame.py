"""Whom explain blames in a run that was correct."""

from rollcall.explain.verdict import Explanation


def blamed(told: Explanation) -> list[str]:
    """What it says, but for slowness: on a busy machine, a rank of a correct program may really be slow."""
    return [finding.message for finding in told.findings if finding.effect != "slow"]
