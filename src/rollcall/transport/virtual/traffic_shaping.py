"""Slow links between virtual hosts: `--link 100mbit --delay 2ms`, by the kernel's traffic control (tc)."""

import re
from dataclasses import dataclass

from rollcall.errors import UsageError

_BITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
# How much may pass in one burst: the data of a millisecond, since timers are too coarse for fast links; at least ten
# packets.
_BURST_S = 0.001
_LEAST_BURST_BYTES = 16_000
# In packets. The kernel's own limit of 1000 would lose some where much is under way: 10 gbit and 100 ms hold 83,000.
_MOST_UNDER_WAY = 100_000


@dataclass(frozen=True)
class Layer:
    """One of the kernel's queueing disciplines, with its settings as `tc` wants them."""

    option: str
    kind: str
    settings: str
    both_ends: bool  # of the link between a host and the switch


def layers(link: str | None, delay: str | None) -> tuple[Layer, ...]:
    """What the two options ask for, the outer layer first."""
    wanted = (link and _rate(link), delay and _delay(delay))
    return tuple(layer for layer in wanted if layer)


def stacked(device: str, layers: tuple[Layer, ...]) -> str:
    """The lines of a `tc` batch that put these layers on a device, one inside the other."""
    places = ["root", *(f"parent {number}:1" for number in range(1, len(layers)))]
    return "".join(
        f"qdisc add dev {device} {place} handle {number}: {layer.settings}\n"
        for number, (place, layer) in enumerate(zip(places, layers, strict=False), 1)
    )


def why_not(layer: Layer, complaint: str) -> str:
    """What to tell the user whose option the kernel, or the lack of a tool, refuses."""
    if "qdisc kind is unknown" not in complaint:
        return f"{layer.option} is not applied: {complaint}"
    return (
        f"this kernel has no {layer.kind}, so {layer.option} is not applied: load it (modprobe sch_{layer.kind}), "
        f"or use a kernel built with CONFIG_NET_SCH_{layer.kind.upper()}"
    )


def bits_per_s(link: str) -> float:
    """Reads the option `--link 100mbit`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", link.lower())
    rate = float(match[1]) * _BITS[match[2]] if match else 0
    if rate < 1000:
        raise UsageError(f"--link {link} is not a rate: use a number with kbit, mbit or gbit, such as --link 100mbit")
    return rate


def _rate(link: str) -> Layer:
    rate = bits_per_s(link)
    burst_bytes = max(_LEAST_BURST_BYTES, round(rate / 8 * _BURST_S))
    settings = f"tbf rate {rate:.0f}bit burst {burst_bytes} latency 50ms"
    return Layer(f"--link {link}", "tbf", settings, both_ends=True)


def _delay(delay: str) -> Layer:
    if not re.fullmatch(r"\d+(\.\d+)?(us|ms|s)", delay.lower()):
        raise UsageError(f"--delay {delay} is not a time: use a number with us, ms or s, such as --delay 2ms")
    settings = f"netem delay {delay.lower()} limit {_MOST_UNDER_WAY}"
    # Where a host sends, and there alone: at both ends of both links, a packet would meet it four times.
    return Layer(f"--delay {delay}", "netem", settings, both_ends=False)
