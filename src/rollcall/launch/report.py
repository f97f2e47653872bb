"""Who failed first, and how that is told: one sentence, one traceback, one line for all the others."""

from dataclasses import dataclass

from rollcall.launch.console import Traceback, indent
from rollcall.launch.messages import Ended
from rollcall.launch.words import how_it_ended, list_of

# Signals that no failing neighbour causes. A rank that got one is where it began, even if the pipes
# brought us the others' last words a moment earlier.
_OWN_DEATHS = {-4, -7, -8, -9, -11}
_NEAR_NS = 1_000_000_000


@dataclass(frozen=True)
class Failure:
    """A rank that ended badly by itself."""

    rank: int
    exit_code: int
    failed_ns: int  # when its traceback began, or else when it was gone
    traceback: tuple[str, ...]

    @property
    def error(self) -> str:
        """The last line of the traceback that is not indented: `ValueError: …`."""
        return next((line for line in reversed(self.traceback) if line and not line[0].isspace()), "")


class Report:
    """The failures of one attempt."""

    def __init__(self, host: str = "") -> None:
        self.host = host
        self._failures: list[Failure] = []

    def add(self, ended: Ended, traceback: Traceback | None) -> None:
        if ended.exit_code == 0 or ended.asked:
            return
        failed_ns, lines = (traceback.since_ns, traceback.lines) if traceback else (ended.ended_ns, ())
        self._failures.append(Failure(ended.rank, ended.exit_code, failed_ns, lines))

    def first_failure(self) -> Failure | None:
        if not self._failures:
            return None
        first = min(self._failures, key=lambda f: f.failed_ns)
        near = [f for f in self._failures if f.failed_ns - first.failed_ns < _NEAR_NS]
        return min(near, key=lambda f: (f.exit_code not in _OWN_DEATHS, f.failed_ns))

    def sentence(self) -> str:
        first = self.first_failure()
        if first is None:
            return "ended from outside"
        error = f": {first.error}" if first.error else ""
        return f"rank {first.rank} on {self.host} {how_it_ended(first.exit_code)}{error}"

    def lines(self) -> list[str]:
        first = self.first_failure()
        if first is None:
            return []
        lines = [self.sentence()]
        if first.traceback:
            lines.append(f"its traceback:\n{indent(first.traceback)}")
        others = [f for f in self._failures if f is not first]
        if others:
            why = {f.error or how_it_ended(f.exit_code) for f in others}
            plural = len(others) > 1
            shown = sorted(why)[0][:160] + (f", and {len(why) - 1} other ways" if len(why) > 1 else "")
            lines.append(
                f"then rank{'s' * plural} {list_of([f.rank for f in others])} failed as well, most likely because"
                f" of it ({shown})"
            )
        return lines
