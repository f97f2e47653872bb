"""The time of a step and the speed of a link, as the user gives them for an estimate."""

from dataclasses import dataclass

from rollcall.errors import UsageError
from rollcall.transport.virtual.traffic_shaping import bits_per_s


@dataclass(frozen=True)
class Link:
    """A step without the network, and the link of a host."""

    step_s: float
    bytes_per_s: float


def parse(step_ms: float | None, link: str | None) -> Link | None:
    if step_ms is None and link is None:
        return None
    if step_ms is None or link is None:
        given, missing = ("--link", "--step-ms 210") if step_ms is None else ("--step-ms", "--link 400gbit")
        raise UsageError(f"{given} is given alone, and an estimate needs both: add {missing}")
    if step_ms <= 0:
        raise UsageError(f"--step-ms {step_ms:g} is not a time: use the milliseconds of a step, more than 0")
    return Link(step_ms / 1e3, bits_per_s(link) / 8)
