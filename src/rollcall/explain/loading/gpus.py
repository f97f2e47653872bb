"""What agents noted of the GPUs of their hosts while the ranks ran: one file per host, beside the rings."""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollcall.runs import GPU_SAMPLES, NCCL_RAS
from rollcall.units import plural

_GAP_NS = 15_000_000_000  # between lines; a longer gap: nobody has looked meanwhile


@dataclass(frozen=True)
class Throttled:
    """A time in which a GPU ran slower than it could, and why. `at_ns` is by the wall clock of its host."""

    why: str
    since_ns: int
    until_ns: int
    at_ns: int


@dataclass(frozen=True)
class RankGpu:
    """The GPU of a rank, while the rank ran. Times are those of the table, if nothing else is said."""

    index: int
    throttled: tuple[Throttled, ...] = ()
    errors: tuple[tuple[int, str], ...] = ()  # when, by the wall clock of its host, and what
    lost: str = ""  # why it is not there any more
    lost_ns: int = 0  # when it answered for the last time


@dataclass(frozen=True)
class User:
    """A rank that may use a GPU. `ahead_ns`: its host's wall clock less the table's."""

    rank: int
    host: str
    pid: int
    ahead_ns: int
    has_ops_on_gpu: bool


def read(place: Path, users: Collection[User]) -> dict[int, RankGpu]:
    """By rank: its GPU. That is the one on which the driver has seen its process. In a container the driver tells other
    process ids than the ranks have: there, ranks with ops on GPUs use one each, in their order, as is the custom."""
    found = {}
    for file in sorted(place.glob(GPU_SAMPLES.format(host="*"))):
        lines = list(_lines(file))
        mine = sorted((user for user in users if lines and user.host == lines[0]["host"]), key=lambda user: user.rank)
        for number, user in enumerate(mine):
            index = _index(lines, user, number)
            if index is not None:
                found[user.rank] = _gpu(index, lines, user.ahead_ns)
    return found


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    """The last one may be half written."""
    for text in file.read_text(errors="replace").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            return
        line["gpus"] = {int(gpu["index"]): gpu for gpu in line["gpus"]}
        yield line


def _index(lines: list[dict[str, Any]], user: User, number: int) -> int | None:
    seen: set[int] = {index for line in lines for index, gpu in line["gpus"].items() if user.pid in gpu.get("pids", ())}
    if seen:
        return min(seen)
    if not user.has_ops_on_gpu:
        return None
    visible: list[int] | None = lines[0]["visible"]
    order: list[int] = sorted(lines[0]["gpus"]) if visible is None else visible
    return order[number] if number < len(order) else None


def _gpu(index: int, lines: list[dict[str, Any]], ahead_ns: int) -> RankGpu:
    states = [(int(line["at_ns"]), line["gpus"][index]) for line in lines if index in line["gpus"]]
    lost = next((place for place, (_, gpu) in enumerate(states) if "lost" in gpu), None)
    return RankGpu(
        index,
        tuple(_throttled(states, ahead_ns)),
        tuple(_errors(states)),
        # One that was never there was not lost during this run.
        str(states[lost][1]["lost"]) if lost else "",
        states[lost - 1][0] - ahead_ns if lost else 0,
    )


def _throttled(states: list[tuple[int, Mapping[str, Any]]], ahead_ns: int) -> Iterator[Throttled]:
    since_ns = 0
    for (at_ns, gpu), (next_ns, following) in zip(states, [*states[1:], (states[-1][0], {})], strict=True):
        why = ", ".join(gpu.get("throttled", ()))
        if not why:
            continue
        since_ns = since_ns or at_ns
        if ", ".join(following.get("throttled", ())) != why or next_ns - at_ns > _GAP_NS:
            yield Throttled(why, since_ns - ahead_ns, min(next_ns, at_ns + _GAP_NS) - ahead_ns, since_ns)
            since_ns = 0


def _errors(states: list[tuple[int, Mapping[str, Any]]]) -> Iterator[tuple[int, str]]:
    counted = int(states[0][1].get("uncorrected_errors", 0))
    for at_ns, gpu in states:
        for xid in gpu.get("xids", ()):
            yield at_ns, f"Xid {xid}"
        now = int(gpu.get("uncorrected_errors", counted))
        if now > counted:
            yield at_ns, f"{plural(now - counted, 'uncorrected ECC error')}"
        counted = now


def nccl_problems(place: Path) -> tuple[str, ...]:
    """What NCCL's RAS service lists as errors and warnings, each in a line. All hosts ask the same service."""
    for file in sorted(place.glob(NCCL_RAS.format(host="*"))):
        return tuple(_listed(file.read_text(errors="replace")))
    return ()


def _listed(text: str) -> Iterator[str]:
    """Paragraphs of these two parts of its answer."""
    for part in re.split(r"^(?=[^\n]+\n=+\n)", text, flags=re.MULTILINE):
        title, _, rest = part.partition("\n")
        if title.strip() in ("Errors", "Warnings"):
            for paragraph in rest.lstrip("=\n").split("\n\n"):
                if lines := [line.strip() for line in paragraph.splitlines() if line.strip()]:
                    yield ": ".join([lines[0], " ".join(lines[1:])]).removesuffix(": ")
