"""Hosts and their slots, as the user lists them: `--hosts a:3,user@b:3`, `--hostfile F`. Pure.

Ranks follow the order of the list, always; the first host is the master.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rollcall.errors import UsageError
from rollcall.protocol import host_list

T = TypeVar("T")
_FORM = "expected something like a:3,user@b:3,node[01-04]:2,[fe80::1]:2"
# user@[address]:slots, where the address has a colon; else the brackets are a range.
_IPV6 = re.compile(
    r"(?:(?P<user>[^@\[\]]+)@)?\[(?P<name>[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*(?:%\w+)?)\](?::(?P<slots>[^:]*))?"
)
_PLAIN = re.compile(r"(?:(?P<user>[^@]+)@)?(?P<name>[^@:]+)(?::(?P<slots>[^:]*))?")


@dataclass(frozen=True)
class Host:
    """A machine with room for `slots` ranks (0: it must still be asked).

    `address`: where the others reach it, if that is known.
    """

    name: str
    slots: int
    user: str | None = None
    address: str | None = None

    @property
    def destination(self) -> str:
        """What ssh calls it."""
        return f"{self.user}@{self.name}" if self.user else self.name


def parse(text: str, slots: int) -> tuple[Host, ...]:
    """The hosts of `--hosts`; those without a number of their own get `slots`."""
    hosts = [host for part in _split(text) for host in _parse_part(part, text, slots)]
    return _check(hosts, f"--hosts {text}")


def read(path: Path, slots: int) -> tuple[Host, ...]:
    """The hosts of a file, one a line: `a slots=3` as Open MPI and DeepSpeed have it, or `a:3`."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"cannot read --hostfile {path} ({why}): name a file with one host a line") from error
    hosts: list[Host] = []
    for number, raw in enumerate(text.splitlines(), 1):
        words = raw.partition("#")[0].split()
        if words:
            hosts += _parse_line(words, f"{path} line {number}", slots)
    return _check(hosts, f"--hostfile {path}")


def rounds(hosts: Iterable[T]) -> Iterator[list[tuple[T, T]]]:
    """All pairs, as in a round-robin tournament: each host is in one pair of a round at most."""
    ring: list[T | None] = list(hosts)
    if len(ring) % 2:
        ring.append(None)
    half = len(ring) // 2
    for _ in range(len(ring) - 1):
        met = zip(ring[:half], reversed(ring[half:]), strict=True)
        yield [(a, b) for a, b in met if a is not None and b is not None]
        ring[1:] = [ring[-1], *ring[1:-1]]


def _parse_line(words: list[str], where: str, slots: int) -> list[Host]:
    name, *settings = words
    for setting in settings:
        key, equals, value = setting.partition("=")
        # Open MPI also knows max-slots; what it means for oversubscribing has no meaning here.
        if not equals or key.replace("_", "-") not in ("slots", "max-slots"):
            raise UsageError(f"{where} has {setting!r}: expected `HOST slots=N`")
        if key == "slots":
            slots = _number(value, where)
    return [host for part in _split(name) for host in _parse_part(part, where, slots)]


def _split(text: str) -> list[str]:
    """Split at the commas outside brackets."""
    return [part.strip() for part in re.split(r",(?![^\[]*\])", text) if part.strip()]


def _parse_part(part: str, text: str, slots: int) -> list[Host]:
    matches = [_IPV6.fullmatch(part)]
    if matches[0] is None:
        matches = [_PLAIN.fullmatch(name) for name in host_list.expand(part)]
    hosts = []
    for match in matches:
        # A name that begins with a dash would be an option to ssh.
        if match is None or match["name"].startswith("-") or (match["user"] or "").startswith("-"):
            raise UsageError(f"{part!r} in {text} is not a host: {_FORM}")
        own = slots if match["slots"] is None else _number(match["slots"], text)
        hosts.append(Host(match["name"], own, match["user"]))
    return hosts


def _number(text: str, where: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 4096:
        raise UsageError(f"{text!r} in {where} is not a number of slots: use 1 to 4096, as in a:3")
    return int(text)


def _check(hosts: list[Host], where: str) -> tuple[Host, ...]:
    if not hosts:
        raise UsageError(f"{where} names no host: {_FORM}")
    twice = [name for name, count in Counter(host.name for host in hosts).items() if count > 1]
    if twice:
        total = sum(host.slots for host in hosts if host.name == twice[0])
        raise UsageError(f"{where} names {twice[0]} twice: name it once, with all its slots ({twice[0]}:{total})")
    return tuple(hosts)
