"""With one measured step and the speed of a host's link: how much of the communication cannot hide. An estimate.

Each line of the program takes as long as the busiest host needs to send, or to receive, its bytes. At best all of that
goes on while the step computes, and only what is longer than the step remains; at worst none of it does.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from rollcall.errors import UsageError
from rollcall.rehearse.network.traffic import Traffic
from rollcall.transport.virtual.traffic_shaping import bits_per_s
from rollcall.units import in_seconds


@dataclass(frozen=True)
class Link:
    """What the user has told: a step without the network, and the link of a host."""

    step_s: float
    bytes_per_s: float


@dataclass(frozen=True)
class Estimate:
    communication_s: float
    least_s: float  # that cannot hide
    most_s: float


def parse(step_ms: float | None, link: str | None) -> Link | None:
    if step_ms is None and link is None:
        return None
    if step_ms is None or link is None:
        given, missing = ("--link", "--step-ms 210") if step_ms is None else ("--step-ms", "--link 400gbit")
        raise UsageError(f"{given} is given alone, and an estimate needs both: add {missing}")
    if step_ms <= 0:
        raise UsageError(f"--step-ms {step_ms:g} is not a time: use the milliseconds of a step, more than 0")
    return Link(step_ms / 1e3, bits_per_s(link) / 8)


def estimate(traffic: Traffic, link: Link) -> Estimate:
    whole_s = sum(call.busiest_bytes for call in traffic.calls) / link.bytes_per_s
    return Estimate(whole_s, max(0.0, whole_s - link.step_s), whole_s)


def lines(traffic: Traffic, link: Link | None) -> Iterator[str]:
    if link is None:
        return
    if not traffic.is_step or not traffic.matrix:
        yield "estimate  none: there are no two optimizer steps with traffic between hosts"
        return
    found = estimate(traffic, link)
    share = f"{found.least_s / link.step_s:.0%} to {found.most_s / link.step_s:.0%} of a step"
    least = in_seconds(found.least_s) if found.least_s else "0"
    yield (
        f"estimate  {least} to {in_seconds(found.most_s)} of communication a step cannot hide"
        f" ({share}, if the network is as fast as its link)"
    )
