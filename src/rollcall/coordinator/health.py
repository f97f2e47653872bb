"""Which hosts are bad, by what they report about themselves and how fast they reach each other. Pure functions.

A figure is compared with the median of all hosts: what is normal depends on the machines, and most hosts are healthy.
"""

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rollcall.units import in_bytes, in_flop, in_seconds

Facts = Mapping[str, Any]  # what rollcall.agent.health prints
# Devices of one model differ by some per cent; a third less is a device that is throttled, shared or broken.
_SLOW_DEVICE = 0.7
# One TCP connection of a quarter of a second varies by a factor of two; a link with the wrong speed or with losses
# loses more.
_SLOW_LINK = 0.4
_LATE_LINK, _LEAST_LATE_S = 4.0, 0.0005
_LEAST_DISK, _LEAST_SHARED_MEMORY, _LEAST_FILES = 1 << 30, 64 << 20, 1024
_BUSY = 0.5  # of a core, for each core: ranks would get half of it
_ALIKE = ("driver", "cuda", "torch_cuda", "nccl")


@dataclass(frozen=True)
class HostProblem:
    """One thing that is wrong with a host."""

    host: str
    text: str
    measured: Literal["", "host", "links"] = ""  # a figure that another measurement may correct, and of what

    def __str__(self) -> str:
        return f"{self.host}: {self.text}"


@dataclass(frozen=True)
class LinkSpeed:
    """Round trip and throughput from one host to another, or why there are none."""

    start: str
    end: str
    round_trip_s: float
    bytes_per_s: float
    error: str = ""


def find(facts: Mapping[str, Facts], links: Sequence[LinkSpeed]) -> list[HostProblem]:
    """All that is wrong, by host."""
    found = [
        *(problem for host, each in facts.items() for problem in _alone(host, each)),
        *_unlike(facts),
        *_slow_devices(facts),
        *_busy(facts),
        *_slow_links([link for link in links if not link.error]),
    ]
    order = list(facts)
    return sorted(found, key=lambda each: order.index(each.host) if each.host in order else len(order))


def _alone(host: str, facts: Facts) -> Iterator[HostProblem]:
    """What is wrong whatever other hosts have."""
    for what, key, least in (
        ("the disk of the folder", "disk_free_bytes", _LEAST_DISK),
        ("/dev/shm", "shared_memory_free_bytes", _LEAST_SHARED_MEMORY),
    ):
        free = facts.get(key)
        if free is not None and free < least:
            yield HostProblem(host, f"{what} has {in_bytes(free)} left, expected {in_bytes(least)} — make room there")
    if facts.get("folder") == "missing":
        yield HostProblem(host, "the folder of this run is missing — share it, or use --sync")
    files = facts.get("open_files", -1)
    if 0 <= files < _LEAST_FILES:
        yield HostProblem(host, f"at most {files} open files, expected {_LEAST_FILES} — raise `ulimit -n`")
    for link in facts.get("infiniband", []):
        if link["state"] not in ("ACTIVE", "unknown"):
            yield HostProblem(host, f"InfiniBand port {link['port']} is {link['state']} — look at its cable and switch")
    for gpu in facts.get("gpus", []):
        for text in _gpu(gpu):
            yield HostProblem(host, f"GPU {gpu['index']} {text}")


def _gpu(gpu: Facts) -> Iterator[str]:
    if lost := gpu.get("lost"):
        yield f"is lost: {lost} — reset or reboot the host"
    if errors := gpu.get("uncorrected_errors"):
        yield f"has {errors} uncorrected ECC errors, expected 0 — reset it, and have it checked if they come again"
    if gpu.get("remap_failed"):
        yield "could not replace broken rows of its memory — have it exchanged"
    elif gpu.get("remap_pending"):
        yield "waits for a reset to replace broken rows of its memory — reset it"
    if throttled := gpu.get("throttled"):
        yield f"is throttled ({', '.join(throttled)}) — look at its cooling and power"
    if gpu.get("temperature_c", 0) >= gpu.get("slowdown_c", 1000):
        yield f"has {gpu['temperature_c']} °C, and slows down from {gpu['slowdown_c']} °C on — look at its cooling"
    if gpu.get("power_limit_w", 0) < gpu.get("default_power_limit_w", 0):
        yield (
            f"may take {gpu['power_limit_w']:g} W, and {gpu['default_power_limit_w']:g} W is its default —"
            f" `nvidia-smi -pl {gpu['default_power_limit_w']:g}`"
        )
    if processes := gpu.get("processes"):
        yield f"is used by {processes} process{'es' * (processes > 1)} already — end them"


def _unlike(facts: Mapping[str, Facts]) -> Iterator[HostProblem]:
    """Versions, numbers of GPUs and their clocks that differ from those of most hosts."""
    for name in _ALIKE:
        yield from _minority({host: each[name] for host, each in facts.items() if each.get(name)}, name)
    yield from _minority({host: len(each.get("gpus", [])) for host, each in facts.items()}, "the number of GPUs")
    clocks = {
        host: max((gpu.get("most_sm_mhz", 0) for gpu in each.get("gpus", [])), default=0)
        for host, each in facts.items()
    }
    yield from _minority(
        {host: clock for host, clock in clocks.items() if clock}, "the highest clock of its GPUs (MHz)"
    )


def _minority(values: Mapping[str, Any], what: str) -> Iterator[HostProblem]:
    if len(values) < 2:
        return
    usual, count = Counter(values.values()).most_common(1)[0]
    for host, value in values.items():
        if value != usual and count > 1:
            yield HostProblem(host, f"{what} is {value}, and {usual} on {count} of {len(values)} hosts")


def _slow_devices(facts: Mapping[str, Facts]) -> Iterator[HostProblem]:
    for key, what in (("flop_per_s", "matrix multiplication"), ("copied_bytes_per_s", "copying memory")):
        each = {(host, device): speed for host, known in facts.items() for device, speed in known.get(key, {}).items()}
        yield from (
            HostProblem(host, text, "host")
            for (host, device), text in _below(each, _SLOW_DEVICE, key == "flop_per_s", f"{what} on {{0[1]}}")
        )
    reduced = {host: known.get("all_reduce_bytes_per_s", 0.0) for host, known in facts.items()}
    measured = {host: speed for host, speed in reduced.items() if speed}
    for host, text in _below(measured, _SLOW_LINK, False, "all_reduce among its ranks"):
        yield HostProblem(host, text, "host")


def _below(figures: Mapping[Any, float], share: float, is_flop: bool, what: str) -> Iterator[tuple[Any, str]]:
    """The figures below this share of the median, in words."""
    if len(figures) < 2:
        return
    median = statistics.median(figures.values())
    for key, figure in figures.items():
        if figure < share * median:
            told = (in_flop(each) if is_flop else f"{in_bytes(each)}/s" for each in (figure, median, share * median))
            yield key, "{}: {}, median {}, threshold {}".format(what.format(key), *told)


def _busy(facts: Mapping[str, Facts]) -> Iterator[HostProblem]:
    """Hosts on which other programs run, if not all of them are so."""
    loads = {host: float(each["load_per_core"]) for host, each in facts.items() if "load_per_core" in each}
    if len(loads) < 2:
        return
    median = statistics.median(loads.values())
    threshold = max(_BUSY, 2 * median)
    for host, load in loads.items():
        if load > threshold:
            text = f"load {load:.2f} per core, median {median:.2f}, threshold {threshold:.2f} — end what runs there"
            yield HostProblem(host, text, "host")


def _slow_links(links: Sequence[LinkSpeed]) -> Iterator[HostProblem]:
    """A host is slow if even its best connection is: a slow link between two others does not count against it. Data
    flows from the end of a link to its start."""
    hosts = list(dict.fromkeys(name for link in links for name in (link.start, link.end)))
    if len(hosts) < 3:  # of two, nobody can tell which one it is
        return
    for what, side in (("receives", "start"), ("sends", "end")):
        best = {
            host: max((link.bytes_per_s for link in links if getattr(link, side) == host), default=0) for host in hosts
        }
        for host, text in _below(best, _SLOW_LINK, False, f"what it {what} on its fastest connection"):
            yield HostProblem(host, text, "links")
    yield from _late_links(hosts, links)


def _late_links(hosts: Sequence[str], links: Sequence[LinkSpeed]) -> Iterator[HostProblem]:
    trips = {host: min(link.round_trip_s for link in links if host in (link.start, link.end)) for host in hosts}
    median = statistics.median(trips.values())
    threshold = max(_LATE_LINK * median, median + _LEAST_LATE_S)
    for host, trip in trips.items():
        if trip > threshold:
            figures = f"{in_seconds(trip)}, median {in_seconds(median)}, threshold {in_seconds(threshold)}"
            yield HostProblem(host, f"its shortest round trip: {figures}", "links")


def better(facts: Mapping[str, Facts], again: Mapping[str, Facts]) -> dict[str, dict[str, Any]]:
    """The facts of the second measurement, with the better speed of both."""
    found = {}
    for host, second in again.items():
        first = facts[host]
        found[host] = {**second, **{key: _best(first.get(key), second.get(key)) for key in _SPEEDS if key in second}}
    return found


_SPEEDS = ("flop_per_s", "copied_bytes_per_s", "all_reduce_bytes_per_s")


def _best(first: Any, second: Any) -> Any:
    if isinstance(second, Mapping):
        return {device: max(speed, (first or {}).get(device, 0.0)) for device, speed in second.items()}
    return max(first or 0.0, second)


def faster(links: Sequence[LinkSpeed], again: Sequence[LinkSpeed]) -> list[LinkSpeed]:
    """Each link with the better figures of both times."""
    second = {(link.start, link.end): link for link in again if not link.error}
    return [_faster_of(link, second.get((link.start, link.end), link)) for link in links]


def _faster_of(one: LinkSpeed, other: LinkSpeed) -> LinkSpeed:
    if one.error:
        return other
    trip_s = min(one.round_trip_s, other.round_trip_s)
    return LinkSpeed(one.start, one.end, trip_s, max(one.bytes_per_s, other.bytes_per_s))
