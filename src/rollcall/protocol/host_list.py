"""Host lists as schedulers write them: `node[01-03,7],x` is node01, node02, node03, node7, x.

Not ClusterShell: its NodeSet sorts the hosts, and ranks follow the order of the list.
"""

import re

from rollcall.errors import UsageError

# A mistyped list such as node[1-999999999] must not fill the memory before the error is found.
MOST_HOSTS = 100_000


def expand(text: str) -> tuple[str, ...]:
    """The hosts of a list, in the order of the list."""
    hosts = tuple(host for part in _split(text) for host in _expand_part(part, text))
    if not hosts:
        raise UsageError(f"host list {text!r} names no host: expected something like node[01-03,7],x")
    return hosts


def expand_counts(text: str) -> tuple[int, ...]:
    """Counts per host as SLURM shortens them: `2(x3),1` is 2, 2, 2, 1."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\(x(\d+)\))?\s*", part)
        if match is None or int(match[2] or 1) > MOST_HOSTS:
            raise UsageError(f"tasks per host {text!r} cannot be read: expected something like 2(x3),1")
        counts += [int(match[1])] * int(match[2] or 1)
    return tuple(counts)


def _split(text: str) -> list[str]:
    """Split at the commas outside brackets."""
    if re.search(r"\[[^\]]*(\[|$)", text) or re.search(r"(^|\])[^\[]*\]", text):
        raise UsageError(f"host list {text!r} has an unmatched bracket: correct the list")
    return [part for part in re.split(r",(?![^\[]*\])", text.strip()) if part]


def _expand_part(part: str, text: str) -> list[str]:
    names = [""]
    for literal, ranges in re.findall(r"([^\[\]]+)|\[([^\]]*)\]", part):
        ends = [literal] if literal else _expand_ranges(ranges, text)
        if len(names) * len(ends) > MOST_HOSTS:
            raise UsageError(f"host list {text!r} names more than {MOST_HOSTS} hosts: correct the list")
        names = [name + end for name in names for end in ends]
    return names


def _expand_ranges(ranges: str, text: str) -> list[str]:
    numbers: list[str] = []
    for item in ranges.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", item)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise UsageError(f"host list {text!r} has the range [{ranges}]: expected something like [01-03,7]")
        first, last = int(match[1]), int(match[2] or match[1])
        if last - first >= MOST_HOSTS:
            raise UsageError(f"host list {text!r} names more than {MOST_HOSTS} hosts: correct the list")
        # All numbers get the width of the first one: 08-10 is 08, 09, 10.
        numbers += [str(number).zfill(len(match[1])) for number in range(first, last + 1)]
    return numbers
