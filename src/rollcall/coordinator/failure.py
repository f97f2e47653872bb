"""Which rank failed first, and the message about it: one sentence, one traceback, one line for all other ranks."""

import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass

from rollcall.coordinator.console import Traceback, indent
from rollcall.protocol.exit_codes import how_it_ended, shell_code
from rollcall.protocol.first_failure import first_of, is_echo
from rollcall.protocol.messages import Ended
from rollcall.protocol.rank_ranges import ranks_in_words

HOST_LOST = 1
_MOST_OF_AN_ERROR = 120
_WHERE = re.compile(r"\[/\S+:\d+\] |(?<=\]):\d+")  # a place in gloo's sources, or a port: other on each rank


@dataclass(frozen=True)
class Failure:
    """A rank that ended badly by itself."""

    rank: int
    exit_code: int
    failed_ns: int  # when its traceback began, or else when it was gone
    traceback: tuple[str, ...]
    cause: str = ""

    @property
    def how(self) -> str:
        """Returns words that follow the rank's name."""
        return self.cause or how_it_ended(self.exit_code)

    @property
    def is_echo(self) -> bool:
        return is_echo(self.error)

    @property
    def error(self) -> str:
        """The last line of the traceback that is not indented: `ValueError: …`."""
        return next((line for line in reversed(self.traceback) if line and not line[0].isspace()), "")


class Report:
    """The failures of one attempt: ranks that ended badly, hosts that were lost."""

    def __init__(self, attempt: int = -1) -> None:
        self.attempt = attempt
        self._hosts: dict[int, str] = {}  # by rank
        self._failures: list[Failure] = []
        self._lost: list[str] = []
        self._lost_code = 0  # what the run ends with for the first host that was lost
        self._exit_codes: dict[int, int] = {}  # by rank: of those that reported their end
        self.hang = ""  # what the attempt hung for, if it was ended for that

    def note_host(self, host: str, ranks: Iterable[int]) -> None:
        """These ranks are on that host."""
        self._hosts.update(dict.fromkeys(ranks, host))

    @property
    def has_begun(self) -> bool:
        return bool(self._hosts)

    def add(self, ended: Ended, traceback: Traceback | None) -> None:
        self._exit_codes[ended.rank] = ended.exit_code
        if ended.exit_code == 0 or ended.asked:
            return
        failed_ns, lines = (traceback.since_ns, traceback.lines) if traceback else (ended.ended_ns, ())
        self._failures.append(Failure(ended.rank, ended.exit_code, failed_ns, lines, ended.cause))

    def lose(self, host: str, why: str, exit_code: int = HOST_LOST) -> None:
        """A host that was lost explains the errors that ranks of other hosts then ran into."""
        self._lost.append(f"{host} {why}")
        self._lost_code = self._lost_code or exit_code

    def why_not_ok(self, world: Iterable[int] | None = None) -> str:
        """Empty only if every rank of this attempt reported its end with 0.

        `world` are all ranks, where the launcher knows them; else those that were started here count.
        """
        ranks = sorted(self._hosts if world is None else world)
        if not self._hosts:
            return "no rank was started"
        silent = [rank for rank in ranks if rank not in self._exit_codes]
        if silent:
            return f"{ranks_in_words(silent)} did not report how {'it' if len(silent) == 1 else 'they'} ended"
        bad = [rank for rank in ranks if self._exit_codes[rank] != 0]
        return f"{ranks_in_words(bad)} ended with another exit code than 0" if bad else ""

    def first_failure(self) -> Failure | None:
        return first_of(self._failures)

    @property
    def exit_code(self) -> int | None:
        """The exit code of the run, if this attempt was its last; None if nothing failed."""
        first = self.first_failure()
        return self._lost_code if self._lost else shell_code(first.exit_code) if first else None

    def sentence(self) -> str:
        first = self.first_failure()
        if self._lost:
            return "; ".join(self._lost)
        if first is None:
            return f"hung: {self.hang}" if self.hang else "ended from outside"
        error = f": {first.error}" if first.error else ""
        return f"rank {first.rank} on {self._hosts.get(first.rank, '?')} {first.how}{error}"

    def lines(self) -> list[str]:
        first = self.first_failure()
        if self._lost:
            return [*self._lost, *([_after_it([f.rank for f in self._failures])] if self._failures else [])]
        if first is None:
            return []
        lines = [self.sentence()]
        if first.traceback:
            lines.append(f"its traceback:\n{indent(first.traceback)}")
        others = [f for f in self._failures if f is not first]
        alike = [f.rank for f in others if (f.exit_code, f.error) == (first.exit_code, first.error)]
        if alike:
            lines.append(f"{ranks_in_words(alike)} failed in the same way")
        after = [f for f in others if f.rank not in alike]
        if after:
            why = sorted({_WHERE.sub("", f.error) or how_it_ended(f.exit_code) for f in after})
            more = f", and {len(why) - 1} more" if len(why) > 1 else ""
            shown = textwrap.shorten(why[0], _MOST_OF_AN_ERROR, placeholder=" …")
            lines.append(f"{_after_it([f.rank for f in after])} ({shown}{more})")
        return lines


def _after_it(ranks: list[int]) -> str:
    return f"{ranks_in_words(ranks)} failed after it, most likely because of it"
