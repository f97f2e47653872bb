"""Runs ranks again until each rank received from collectives what the others contributed.

A rank runs alone, so in its first pass it can only assume what the others contribute. If that was wrong, it runs again.
"""

import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollcall.rehearse import replay
from rollcall.rehearse.forked_ranks import ForkedRanks, RankResult

# A stop flag, lengths and a configuration are right after two or three passes. A value that passes from rank to rank
# step by step needs as many passes as steps: in a large world that takes too long, and the output says so. With few
# ranks, more passes are allowed, in the time of one pass of many ranks.
MOST_PASSES, MOST_RUNS_OF_FEW = 6, 128
Progress = Callable[[str, int], None]  # the name of a pass that begins, and its ranks; and "", 1 as each rank ends


@dataclass(frozen=True)
class Rehearsed:
    ranks: dict[int, RankResult]
    passes: int
    unsettled: tuple[int, ...]  # ranks that would have to run once more
    unstable: tuple[str, ...] = ()  # lines with values that differ each time, such as the time
    guessed: tuple[str, ...] = ()  # lines before failures, whose values depend on ranks that did not run


class FixedPoint:
    """The results of all ranks that have run so far. Ranks can be added."""

    def __init__(self, ranks: ForkedRanks, world_size: int, folder: Path, on_progress: Progress) -> None:
        self._ranks, self._world_size, self._folder, self._on_progress = ranks, world_size, folder, on_progress
        self.results: dict[int, RankResult] = {}
        self._unstable: set[Any] = set()
        self._changed: set[int] = set()  # ranks that made other calls than in their last pass
        self._passes = 0
        self._unsettled: list[int] = []

    def add(self, numbers: Sequence[int]) -> None:
        """Runs these ranks, and then all whose results are wrong."""
        from rollcall.rehearse import consistency  # here: it imports torch, while the server does so, too

        self._on_progress("pass 1", len(numbers))
        # One rank runs first: what others receive from it, such as a configuration, is right in their first pass.
        self._run(numbers[:1])
        self._run(numbers[1:])
        number = 1
        most = max(MOST_PASSES, MOST_RUNS_OF_FEW // len(self.results))
        while (todo := self._to_run_again()) and number < most:
            number += 1
            self._on_progress(f"pass {number}", len(todo))
            if consistency.wait_for_messages(self.results, self._known(), todo):
                # Rank by rank, upwards and then downwards: so a message passes a whole pipeline in one pass.
                for rank in sorted(self.results, reverse=number % 2 == 1):
                    if not consistency.is_right(self.results[rank], self._known(), self._unstable):
                        self._run([rank])
            else:
                self._run(todo[:1])  # first, as in the first pass: often it is the rank from which the others receive
                self._run(todo[1:])
        if todo and not self._changed:  # the ranks make the same calls, whatever they receive
            wrong = consistency.find(self.results, self._known())
            self._unstable.update(key for ops in wrong.values() for key in ops)
            todo = []
        self._passes, self._unsettled = max(self._passes, number), todo

    def outcome(self) -> Rehearsed:
        from rollcall.rehearse import consistency  # here: it imports torch

        known = self._known()
        for rank in consistency.failed_on_a_guess(self.results, known):
            self.results[rank].is_cut = True
        is_part = len(self.results) < self._world_size
        guessed = consistency.guessed_before_failing(self.results, known) if is_part else ()
        return Rehearsed(
            dict(self.results), self._passes, tuple(self._unsettled), _places(self.results, self._unstable), guessed
        )

    def _known(self) -> Any:
        from rollcall.rehearse import consistency  # here: it imports torch

        return consistency.given(self.results)

    def _run(self, numbers: Iterable[int]) -> None:
        from rollcall.rehearse import consistency  # here: it imports torch

        table = _write(self._folder, self._known())
        for rank, result in self._ranks.run(numbers, table, lambda: self._on_progress("", 1)).items():
            self._changed.discard(rank)
            if rank in self.results:
                self._unstable.update(consistency.find_unstable(self.results[rank], result))
                self._changed.update([rank] if result.calls != self.results[rank].calls else [])
            self.results[rank] = result

    def _to_run_again(self) -> list[int]:
        """Ranks that received a wrong value from an op that completes. What a rank received from an op that never
        completes does not matter, since the rank would wait there forever."""
        from rollcall.rehearse import consistency  # here: it imports torch

        wrong = consistency.find(self.results, self._known(), self._unstable)
        if not wrong:
            return []
        replayed = replay.of_folder(self._folder, [rank for rank, result in self.results.items() if result.is_cut])
        replayed.run()
        return [
            rank for rank, ops in wrong.items() if any(replayed.is_over(rank, took.record) for took in ops.values())
        ]


def _places(results: dict[int, RankResult], unstable: set[Any]) -> tuple[str, ...]:
    """The lines with values that differ each time."""
    return tuple(sorted({result.took[key][4] for result in results.values() for key in unstable & result.took.keys()}))


def _write(folder: Path, known: Any) -> Path:
    path = folder / "rehearsal" / "given.pickle"
    path.write_bytes(pickle.dumps(known))
    return path
