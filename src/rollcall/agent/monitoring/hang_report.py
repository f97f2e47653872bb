"""What the agents of hosts that were started by hand tell each other when no rank makes progress.

Each of these hosts has its own launcher, which knows only the ranks of its host.
"""

import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rollcall.agent.monitoring.hang_detector import newest_ops, waits
from rollcall.protocol.rank_ranges import ranks_in_words
from rollcall.record import ring_format
from rollcall.runs import rank_rings


@dataclass(frozen=True)
class HangReport:
    """The ranks of one host. A ring is the same file for two hosts if its header is the same: it says when the rank
    began, to the nanosecond."""

    host: str
    folder: str
    idle: dict[str, bool]  # by rank: whether it used no processor
    computing: list[int]  # ranks that are in no op, and use the processor
    rings: dict[str, str]  # by path: the header, in hexadecimal

    def readable_rings(self) -> list[str]:
        """Those that this host sees on a disk that both share."""
        return [path for path, header in self.rings.items() if _header(Path(path)) == header]


def make(folder: Path, attempt: int, idle: Mapping[str, bool]) -> HangReport:
    """Returns what this host sees."""
    rings = rank_rings(folder, attempt)
    waiting = {_rank(path) for path in rings if waits(newest_ops(path))}
    computing = [int(rank) for rank, is_idle in idle.items() if not is_idle and int(rank) not in waiting]
    headers = {str(path): _header(path) for path in rings}
    return HangReport(socket.gethostname(), str(folder), dict(idle), computing, headers)


def unread_recordings(reports: Iterable[HangReport]) -> Iterator[str]:
    """A sentence for each host whose recording this one cannot read."""
    for each in reports:
        if unread := sorted(set(each.rings) - set(each.readable_rings())):
            ranks = ranks_in_words([_rank(Path(path)) for path in unread])
            yield f"the recording of {ranks} is in {each.folder} on {each.host}, which cannot be read here"
        if computing := computing_unrecorded([each]):
            yield f"{ranks_in_words(computing)} on {each.host} computes, so the run is left alone"


def computing_unrecorded(reports: Iterable[HangReport]) -> list[int]:
    """Ranks that compute and of which no recording can be read here, so that explain does not know of them. They may
    also have none yet: a fresh interpreter is recorded from its first group on."""
    return [rank for each in reports for rank in each.computing if rank not in _ranks_read(each)]


def _ranks_read(each: HangReport) -> set[int]:
    return {_rank(Path(path)) for path in each.readable_rings()}


def _rank(ring: Path) -> int:
    return int(ring.stem.removeprefix("rank-"))


def _header(ring: Path) -> str:
    try:
        with open(ring, "rb") as file:
            return file.read(ring_format.HEADER.size).hex()
    except OSError:
        return ""
