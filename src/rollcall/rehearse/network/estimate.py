"""Estimates, from a measured step and the speed of a host's link, how much communication computing cannot hide.

Each line of the program takes as long as the busiest host needs to send, or to receive, its bytes. At best all of
it runs while the step computes, and only what takes longer than the step remains; at worst none of it does.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from rollcall.rehearse.network.link import Link
from rollcall.rehearse.network.traffic import Traffic
from rollcall.units import in_seconds


@dataclass(frozen=True)
class Estimate:
    communication_s: float
    least_s: float  # that cannot hide
    most_s: float


# gloo sends by TCP: an Ethernet frame of 1,514 bytes carries 1,448 of them.
_TCP_SHARE = 1448 / 1514


def estimate(traffic: Traffic, link: Link) -> Estimate:
    share = _TCP_SHARE if "gloo" in traffic.backends else 1.0
    whole_s = sum(call.serial_bytes for call in traffic.calls) / (share * link.bytes_per_s)
    return Estimate(whole_s, max(0.0, whole_s - link.step_s), whole_s)


def as_json(traffic: Traffic, link: Link | None) -> dict[str, float] | None:
    return asdict(estimate(traffic, link)) if link is not None and traffic.is_step else None


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
