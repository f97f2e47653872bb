"""Reads the numbers of a run from its files, while it runs."""

import json
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from rollcall.explain.evidence import Evidence
from rollcall.live.metrics.metric import Metric, gauge
from rollcall.live.rate_limit import RateLimit
from rollcall.live.reader import LiveRun
from rollcall.live.state import Observer, RankNow, State
from rollcall.record import ring_format
from rollcall.runs import TRAINING

MOST_LABELS = 32  # ranks that have a number of their own: a label for each of a thousand would fill Prometheus
OTHERS = "others"
_MOST_OPS = 40_000  # whose waits are counted in one look
_SETTLED_NS = 300_000_000  # calls of this age have been left by all their ranks
_WAITS_SHARE, _WAITS_EVERY_S = 0.02, 1.0  # of a core, and the least time between two looks at waits
_TRAINING = {
    "step": "Steps that the Trainer has made.",
    "epoch": "The epoch that the Trainer is in, from 0.",
    "samples_per_s": "Samples that the Trainer trains on in a second, all ranks together.",
}


class Collector:
    def __init__(self, folder: Path) -> None:
        self._folder, self._run = folder, LiveRun(folder)
        self._observer = Observer(self._run)
        self._attempt = -1
        self._past, self._now = Tally(), Tally()  # of earlier attempts, and of this one
        self._waited_s: NDArray[np.float64] = np.zeros(0)  # by rank: how long others waited for it
        self._counted_until_ns = 0
        self._limit = RateLimit(_WAITS_SHARE, _WAITS_EVERY_S)

    def collect(self) -> list[Metric]:
        ranks = self._observer.look()
        if self._run.attempt != self._attempt:
            self._attempt, self._counted_until_ns = self._run.attempt, 0
            self._past += self._now
        self._now = Tally.of_all(self._run)
        if not self._limit.left_s:
            began_s = time.thread_time()
            self._count_waits()
            self._limit.add(time.thread_time() - began_s)
        total = self._past + self._now
        return [*self._about_run(ranks), *total.metrics(), self._waits(), *_training(self._folder)]

    def _about_run(self, ranks: list[RankNow]) -> list[Metric]:
        states = Counter(each.state for each in ranks)
        alive_s = [each.since_s for each in ranks if each.state not in ("ended", "unseen")]
        attempts = max(len(self._run.facts.get("attempts") or []), 1)
        return [
            gauge("up", "1 during the run.", float(not self._run.is_over)),
            gauge("world_size", "Ranks of this attempt.", self._run.world_size),
            Metric("restarts_total", "counter", "Attempts after the first.", {"": attempts - 1}),
            Metric(
                "ranks", "gauge", "Ranks by what they do.", {each: states[each] for each in get_args(State)}, "state"
            ),
            gauge("seconds_since_last_op", "Since any rank began or ended an op.", min(alive_s, default=0.0)),
        ]

    def _count_waits(self) -> None:
        """Add the waits that ended since the last look, of calls that all their ranks have left."""
        if not self._run.rings:
            return
        until_ns = self._run.common_now_ns() - _SETTLED_NS
        evidence = Evidence(self._run.window(self._counted_until_ns - _SETTLED_NS, _MOST_OPS), until_ns)
        waits = evidence.waits
        over = np.flatnonzero(waits.is_over)
        ended_ns = evidence.table.arrived_ns[waits.last[over]]
        fresh = over[(ended_ns > self._counted_until_ns) & (ended_ns <= until_ns)]
        added_s = np.bincount(waits.for_rank[fresh], waits.seconds[fresh], minlength=self._run.world_size)
        size = max(len(added_s), len(self._waited_s))
        self._waited_s = np.pad(self._waited_s, (0, size - len(self._waited_s)))
        self._waited_s[: len(added_s)] += added_s
        self._counted_until_ns = until_ns

    def _waits(self) -> Metric:
        help_text = "Seconds that other ranks waited for this rank, added up."
        return Metric("others_waited_seconds_total", "counter", help_text, bounded(self._waited_s), "rank")


def bounded(by_rank: NDArray[np.float64]) -> dict[str, float]:
    """The ranks with the largest values have their own; the others share one, if there are more."""
    largest = np.sort(np.argsort(-by_rank, kind="stable")[:MOST_LABELS]).tolist()
    found = {str(rank): float(by_rank[rank]) for rank in largest}
    if len(by_rank) > MOST_LABELS:
        found[OTHERS] = float(by_rank.sum()) - sum(found.values())
    return found


class Tally:
    """How many ops of each kind there were, and their bytes."""

    def __init__(self, ops: NDArray[np.int64] | None = None, sizes: NDArray[np.float64] | None = None) -> None:
        self._ops = np.zeros(len(ring_format.OPS), dtype=np.int64) if ops is None else ops
        self._sizes = np.zeros(len(ring_format.OPS)) if sizes is None else sizes

    @classmethod
    def of_all(cls, run: LiveRun) -> "Tally":
        tally = cls()
        for ring in run.rings.values():
            tally += cls(ring.ops, ring.sizes_bytes)
        return tally

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(self._ops + other._ops, self._sizes + other._sizes)

    def metrics(self) -> list[Metric]:
        ops = Metric("ops_total", "counter", "Ops that ranks have begun, by op.", self._by_op(self._ops), "op")
        sizes = Metric("bytes_total", "counter", "Bytes of their tensors, by op.", self._by_op(self._sizes), "op")
        return [ops, sizes]

    def _by_op(self, numbers: NDArray[np.int64] | NDArray[np.float64]) -> Mapping[str, float]:
        names = [number for number in range(1, len(ring_format.OPS)) if number not in ring_format.EVENTS]
        return {ring_format.OPS[number]: float(numbers[number]) for number in names if self._ops[number]}


def _training(folder: Path) -> list[Metric]:
    """What the Trainer says of itself, if it is one."""
    try:
        said = json.loads((folder / TRAINING).read_text())
        return [gauge(f"training_{name}", text, float(said[name])) for name, text in _TRAINING.items()]
    except (OSError, ValueError, KeyError, TypeError):
        return []
