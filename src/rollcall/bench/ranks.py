"""The program of every rank: python -m rollcall.bench.ranks SETTINGS, under `rollcall run`.

Rank 0 has the clock and decides; the others follow, since all must make the same calls. Sizes are passed through in
several rounds: what changes from one to the next is noise, and a later comparison has to look beyond it.
"""

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
import torch
import torch.distributed as dist
from numpy.typing import NDArray

import rollcall
from rollcall.bench import measuring, ops, pairs, sizes
from rollcall.bench.results import FILE, Results, Row
from rollcall.bench.settings import Place, Settings
from rollcall.world import World

ROUNDS = 5
_PROBE = 3
_BOUND_BY_SPEED_BYTES = 256 << 10  # from here on, four times the size takes about four times as long
# Both buffers of all ranks of a host, and what a check needs beside them, in this share of its free memory.
_MEMORY_SHARE = 0.6
_BUFFERS = 3.0


@dataclass
class _Case:
    """One op at one size, with what was measured of it so far."""

    op: str
    dtype: torch.dtype
    size_bytes: int
    place: Place
    wrong: int = 0
    per_round: int = 0
    rounds: list[NDArray[np.float64]] = field(default_factory=list)  # ranks × iterations each


class Bench:
    """The benchmark as one rank sees it."""

    def __init__(self, world: World, settings: Settings) -> None:
        self._world, self._settings = world, settings
        self._device = world.device
        self._finish = measuring.finisher(world.device)
        self._begun_s = time.monotonic()
        self._left_out: list[str] = []
        largest = self._largest()
        self._sizes = [size for size in settings.sizes_bytes if size <= largest]
        beyond = [size for size in settings.sizes_bytes if size > largest]
        if beyond:
            self._left_out.append(f"{_span(beyond)}: there is memory for {sizes.in_words(int(largest))} on each rank")
        self._buffers = ops.Buffers.of(0, world.device)

    def _largest(self) -> float:
        """The largest size for which every rank has memory."""
        local = self._world.info.local_world_size
        if self._device.type == "cuda":
            free, local = torch.cuda.mem_get_info(self._device)[0], 1
        else:
            free = psutil.virtual_memory().available
        return measuring.smallest(free * _MEMORY_SHARE / local / _BUFFERS, self._device)

    def measure(self) -> Results:
        parts = [(op, dtype) for op in self._settings.ops for dtype in self._dtypes(op)]
        rows: list[Row] = []
        for number, (op, dtype) in enumerate(parts):
            share_s = (self._settings.max_time_s - self._elapsed_s()) / (len(parts) - number)
            found = list(self._measure_op(op, dtype, share_s))
            rows += found
            if self._world.is_first and found:
                print(f"{op} {dtype}: up to {sizes.in_words(found[-1].size_bytes)}", file=sys.stderr, flush=True)
        hosts = self._hosts()
        return Results(
            settings=self._settings,
            ranks=self._world.size,
            hosts=hosts,
            backend=self._world.info.backend,
            device=self._device.type,
            versions={"rollcall": rollcall.__version__, "torch": torch.__version__},
            rows=tuple(rows),
            pairs=tuple(pairs.measure(self._world, hosts)),
            left_out=tuple(self._left_out),
            seconds=round(time.monotonic() - self._begun_s, 3),
        )

    def _dtypes(self, op: str) -> tuple[str, ...]:
        """A barrier carries nothing, and a send does not look at what it carries: one dtype tells all."""
        return self._settings.dtypes[:1] if op in ("barrier", "send_one_way", "send_two_way") else self._settings.dtypes

    def _elapsed_s(self) -> float:
        return measuring.agreed(time.monotonic() - self._begun_s, self._device)

    def _hosts(self) -> tuple[str, ...]:
        names: list[str] = [""] * self._world.size
        dist.all_gather_object(names, self._world.info.hostname)
        return tuple(names)

    def _measure_op(self, op: str, dtype_name: str, share_s: float) -> Iterator[Row]:
        until_s = self._elapsed_s() + share_s
        kept = list(self._try(self._cases(op, dtype_name), until_s))
        for _ in range(ROUNDS):
            for case in kept:
                self._add_round(case)
        for case in kept:
            yield self._row(case, dtype_name)

    def _cases(self, op: str, dtype_name: str) -> list[_Case]:
        dtype: torch.dtype = getattr(torch, dtype_name)
        places = [place for place in ops.places_of(op) if place in self._settings.places] or ["out"]
        real = dict.fromkeys(ops.real_size(op, size, dtype.itemsize, self._world.size) for size in self._sizes)
        return [_Case(op, dtype, size, place) for size in real for place in places]

    def _try(self, cases: list[_Case], until_s: float) -> Iterator[_Case]:
        """The cases for which there is time, each checked once; sizes grow, so the first that is too slow ends it."""
        call_s = promised_s = 0.0
        before: _Case | None = None
        for number, case in enumerate(cases):
            left_s = until_s - self._elapsed_s() - promised_s
            if before is not None and before.size_bytes >= _BOUND_BY_SPEED_BYTES:
                call_s *= case.size_bytes / before.size_bytes
            # The check, the probe and its warm-up, and one call in each round with a warm-up.
            if number and call_s * (_PROBE + 2 + 2 * ROUNDS) > left_s:
                what = f"{case.op} {str(case.dtype).removeprefix('torch.')}"
                self._left_out.append(f"{what} from {sizes.in_words(case.size_bytes)} on: no time left (--max-time)")
                return
            call_s = self._probe(case)
            allowed_s = (until_s - self._elapsed_s() - promised_s) / (len(cases) - number)
            most = max(self._settings.iterations // ROUNDS, 1)
            wanted = allowed_s / ROUNDS / max(call_s, 1e-9) - self._settings.warmup
            case.per_round = int(measuring.agreed(min(max(wanted, 1), most), self._device))
            promised_s += (case.per_round + self._warmup(case)) * ROUNDS * call_s
            before = case
            yield case

    def _warmup(self, case: _Case) -> int:
        """Fewer where a call takes long: after one of it, nothing is cold."""
        return self._settings.warmup if case.per_round > self._settings.warmup else min(self._settings.warmup, 1)

    def _prepare(self, case: _Case) -> ops.Trial:
        if case.size_bytes > self._buffers.size_bytes:  # as sizes grow: zeroing 2 GB takes its time, too
            self._buffers = ops.Buffers.of(case.size_bytes, self._device)
        given, taken = self._buffers.views(case.size_bytes, case.dtype)
        return ops.prepare(case.op, case.place, self._world.rank, self._world.size, given, taken)

    def _probe(self, case: _Case) -> float:
        """Check that the op does what it says; then how long it takes, about."""
        trial = self._prepare(case)
        self._buffers.taken[: case.size_bytes].fill_(0)
        trial.fill()
        trial.call()
        if self._finish is not None:
            self._finish()
        case.wrong = measuring.total(trial.wrong(), self._device)
        took = measuring.times_s(trial, _PROBE, self._finish)
        return measuring.agreed(float(np.median(took)) * trial.divide, self._device)

    def _add_round(self, case: _Case) -> None:
        trial = self._prepare(case)
        trial.fill()
        self._world.barrier()  # before the warm-up: who leaves it first would wait for the others in the first call
        for _ in range(self._warmup(case)):
            trial.call()
        if self._finish is not None:
            self._finish()
        own = measuring.times_s(trial, case.per_round, self._finish)
        case.rounds.append(measuring.from_all_ranks(own, self._world.size, self._device))

    def _row(self, case: _Case, dtype_name: str) -> Row:
        involved = [0, self._world.size - 1] if case.op == "send_one_way" else list(range(self._world.size))
        taken = [each[involved] for each in case.rounds]
        samples = np.concatenate(taken, axis=1)
        mean_s = float(samples.mean())
        algorithm_gb_s = case.size_bytes / mean_s / 1e9
        p50, p90, p99 = (float(each) for each in np.percentile(samples, (50, 90, 99)))
        return Row(
            op=case.op,
            dtype=dtype_name,
            size_bytes=case.size_bytes,
            place=case.place,
            iterations=case.per_round * ROUNDS,
            mean_s=mean_s,
            min_s=float(samples.min()),
            p50_s=p50,
            p90_s=p90,
            p99_s=p99,
            algorithm_gb_s=algorithm_gb_s,
            bus_gb_s=algorithm_gb_s * ops.bus_factor(case.op, self._world.size),
            wrong=case.wrong,
            rounds_s=tuple(float(np.median(each)) for each in taken),
        )


def _span(of: list[int]) -> str:
    first, last = sizes.in_words(of[0]), sizes.in_words(of[-1])
    return first if len(of) == 1 else f"{first} to {last}"


def main() -> None:
    settings = Settings.model_validate_json(sys.argv[1])
    with rollcall.init(backend=settings.backend) as world:
        results = Bench(world, settings).measure()
        if world.is_first:
            Path(os.environ["ROLLCALL_RUN"], FILE).write_text(results.model_dump_json())


if __name__ == "__main__":
    main()
