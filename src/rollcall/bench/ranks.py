"""The program of every rank: python -m rollcall.bench.ranks SETTINGS, under `rollcall run`.

Rank 0 decides how often an op is repeated, since all ranks must make the same calls. All sizes are measured in several
rounds: differences between rounds are noise, and a later comparison only counts larger ones.
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
from rollcall.bench import ops, pairs, timed_loop
from rollcall.bench.results import FILE, BenchResults, Row
from rollcall.bench.settings import BenchSettings, Groups, Placement, RecordedCall
from rollcall.errors import UsageError
from rollcall.protocol.rank_ranges import ranks_in_words
from rollcall.units import in_binary_bytes
from rollcall.world import World

ROUNDS = 5
_FIRST_CALLS = 3
_BOUND_BY_SPEED_BYTES = 256 << 10  # from this size on, time grows with the size
# The share of a host's free memory that the buffers of its ranks may take, with what the check of results needs.
_MEMORY_SHARE = 0.6
_BUFFERS = 3.0
_ANY_DTYPE = "uint8"


@dataclass
class _Case:
    """One op at one size, and its times so far."""

    op: str
    dtype: torch.dtype
    size_bytes: int
    place: Placement
    wrong: int = 0
    groups: Groups = ()
    recorded: RecordedCall | None = None
    per_round: int = 0
    rounds: list[NDArray[np.float64]] = field(default_factory=list)  # ranks × iterations each


class Bench:
    """The benchmark on one rank."""

    def __init__(self, world: World, settings: BenchSettings) -> None:
        self._world, self._settings = world, settings
        self._device = world.device
        self._synchronize = timed_loop.synchronizer(world.device)
        self._queues = settings.queue if settings.queue is not None else world.device.type == "cuda"
        if settings.graph and world.info.backend != "nccl":
            raise UsageError(
                f"--graph needs the backend nccl, and this is {world.info.backend}: leave --graph out, or use GPUs"
            )
        self._made: dict[tuple[int, ...], ops.Members] = {}
        self._begun_s = time.monotonic()
        self._left_out: list[str] = []
        largest = self._largest()
        wanted = sorted({call.size_bytes for call in settings.like}) or settings.sizes_bytes
        self._sizes = [size for size in wanted if size <= largest]
        beyond = [size for size in wanted if size > largest]
        if beyond:
            self._left_out.append(f"{_span(beyond)}: memory is enough for {in_binary_bytes(int(largest))} on each rank")
        self._buffers = ops.Buffers.of(0, world.device)

    def _largest(self) -> float:
        """The largest size that fits in memory on every rank."""
        local = self._world.info.local_world_size
        if self._device.type == "cuda":
            free, local = torch.cuda.mem_get_info(self._device)[0], 1
        else:
            free = psutil.virtual_memory().available
        return timed_loop.min_over_ranks(free * _MEMORY_SHARE / local / _BUFFERS, self._device)

    def measure(self) -> BenchResults:
        parts = self._parts()
        rows: list[Row] = []
        for number, (op, dtype, cases) in enumerate(parts):
            share_s = (self._settings.max_time_s - self._elapsed_s()) / (len(parts) - number)
            found = list(self._measure_cases(cases, dtype, share_s))
            rows += found
            if self._world.is_first and found:
                print(f"{op} {dtype}: up to {in_binary_bytes(found[-1].size_bytes)}", file=sys.stderr, flush=True)
        hosts = self._hosts()
        return BenchResults(
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
        """The dtype makes no difference to a barrier or a send: the first one is enough."""
        return self._settings.dtypes[:1] if op in ("barrier", "send_one_way", "send_two_way") else self._settings.dtypes

    def _elapsed_s(self) -> float:
        return timed_loop.value_of_rank_0(time.monotonic() - self._begun_s, self._device)

    def _hosts(self) -> tuple[str, ...]:
        names: list[str] = [""] * self._world.size
        dist.all_gather_object(names, self._world.info.hostname)
        return tuple(names)

    def _parts(self) -> list[tuple[str, str, list[_Case]]]:
        """What is measured together: the sizes of an op, or those of a recorded run."""
        if not self._settings.like:
            wanted = [op for op in self._settings.ops if self._can_measure(op)]
            ops_and_types = [(op, dtype) for op in wanted for dtype in self._dtypes(op)]
            return [(op, dtype, self._cases(op, dtype)) for op, dtype in ops_and_types]
        by_op: dict[str, list[_Case]] = {}
        kept = (call for call in self._settings.like if call.size_bytes in self._sizes and self._can_measure(call.op))
        for call in sorted(kept, key=lambda call: call.size_bytes):
            by_op.setdefault(call.op, []).append(self._recorded_case(call))
        return [(op, _ANY_DTYPE, cases) for op, cases in by_op.items()]

    def _can_measure(self, op: str) -> bool:
        if self._world.size == 1 and op.startswith("send"):
            self._left_out.append(f"{op}: needs 2 ranks")
            return False
        if self._settings.graph and op == "barrier":
            self._left_out.append("barrier: the host waits in it, so it cannot be in a graph")
            return False
        return True

    def _recorded_case(self, call: RecordedCall) -> _Case:
        """Makes the case of bytes: the dtype of a sum matters little to a network, and any size is possible."""
        place: Placement = "in" if "in" in ops.placements_of(call.op) else "out"
        size = ops.rounded_size(call.op, call.size_bytes, 1, len(call.groups[0]))
        return _Case(call.op, torch.uint8, size, place, groups=call.groups, recorded=call)

    def _members(self, case: _Case) -> ops.Members | None:
        """The group of this rank in this case; None if it is in none. All ranks make all groups, in the same order."""
        if not case.groups:
            return ops.Members(None, tuple(range(self._world.size)))
        for ranks in case.groups:
            if ranks not in self._made:
                whole = len(ranks) == self._world.size
                self._made[ranks] = ops.Members(None if whole else dist.new_group(list(ranks)), ranks)
        return next((self._made[ranks] for ranks in case.groups if self._world.rank in ranks), None)

    def _measure_cases(self, cases: list[_Case], dtype_name: str, share_s: float) -> Iterator[Row]:
        until_s = self._elapsed_s() + share_s
        kept = list(self._select(cases, until_s))
        for _ in range(ROUNDS):
            for case in kept:
                self._add_round(case)
        for case in kept:
            yield self._row(case, dtype_name)

    def _cases(self, op: str, dtype_name: str) -> list[_Case]:
        dtype: torch.dtype = getattr(torch, dtype_name)
        places = [place for place in ops.placements_of(op) if place in self._settings.places] or ["out"]
        groups = () if op.startswith("send") else self._settings.groups
        ranks = len(groups[0]) if groups else self._world.size
        real = dict.fromkeys(ops.rounded_size(op, size, dtype.itemsize, ranks) for size in self._sizes)
        return [_Case(op, dtype, size, place, groups=groups) for size in real for place in places]

    def _select(self, cases: list[_Case], until_s: float) -> Iterator[_Case]:
        """The cases for which there is time, each checked once. Sizes grow: the first that is too slow is the last."""
        call_s = promised_s = 0.0
        before: _Case | None = None
        for number, case in enumerate(cases):
            left_s = until_s - self._elapsed_s() - promised_s
            if before is not None and before.size_bytes >= _BOUND_BY_SPEED_BYTES:
                call_s *= case.size_bytes / before.size_bytes
            # The check, the first timing with its warm-up, and in each round one call and one to warm up.
            if number and call_s * (_FIRST_CALLS + 2 + 2 * ROUNDS) > left_s:
                what = f"{case.op} {str(case.dtype).removeprefix('torch.')}"
                self._left_out.append(f"{what} from {in_binary_bytes(case.size_bytes)} on: no time left (--max-time)")
                return
            call_s = self._check_and_time(case)
            allowed_s = (until_s - self._elapsed_s() - promised_s) / (len(cases) - number)
            most = max(self._settings.iterations // ROUNDS, 1)
            wanted = allowed_s / ROUNDS / max(call_s, 1e-9) - self._settings.warmup
            case.per_round = int(timed_loop.value_of_rank_0(min(max(wanted, 1), most), self._device))
            promised_s += (case.per_round + self._warmup(case)) * ROUNDS * call_s
            before = case
            yield case

    def _warmup(self, case: _Case) -> int:
        """Fewer if a call takes long: then one is enough to warm up."""
        return self._settings.warmup if case.per_round > self._settings.warmup else min(self._settings.warmup, 1)

    def _prepare(self, case: _Case) -> ops.Trial:
        if case.size_bytes > self._buffers.size_bytes:  # allocated as sizes grow: zeroing 2 GB takes long
            self._buffers = ops.Buffers.of(case.size_bytes, self._device)
        input, taken = self._buffers.views(case.size_bytes, case.dtype)
        members = self._members(case)
        if members is None:  # this rank only takes part in what all ranks decide together
            return ops.Trial(lambda: None, lambda: None)
        own = members.ranks.index(self._world.rank)
        return ops.prepare(case.op, case.place, own, len(members.ranks), input, taken, members)

    def _check_and_time(self, case: _Case) -> float:
        """Check the result of the op; then return how long a call takes, roughly."""
        trial = self._prepare(case)
        self._buffers.output[: case.size_bytes].fill_(0)
        trial.fill()
        trial.call()
        if self._synchronize is not None:
            self._synchronize()
        if self._settings.check:
            case.wrong = timed_loop.sum_over_ranks(trial.wrong(), self._device)
        took = timed_loop.times_s(trial, _FIRST_CALLS, self._synchronize)
        return timed_loop.value_of_rank_0(float(np.median(took)) * trial.ops_per_call, self._device)

    def _add_round(self, case: _Case) -> None:
        trial = self._prepare(case)
        trial.fill()
        self._world.barrier()  # before the warm-up, since ranks leave the barrier at different times
        for _ in range(self._warmup(case)):
            trial.call()
        if self._synchronize is not None:
            self._synchronize()
        if self._settings.graph:
            own = timed_loop.replayed_s(trial, case.per_round)
        elif self._queues:
            own = timed_loop.queued_s(trial, case.per_round, self._device)
        else:
            own = timed_loop.times_s(trial, case.per_round, self._synchronize)
        case.rounds.append(timed_loop.gather_times(own, self._world.size, self._device))

    def _row(self, case: _Case, dtype_name: str) -> Row:
        everyone = [rank for ranks in case.groups for rank in ranks] or list(range(self._world.size))
        involved = [0, self._world.size - 1] if case.op == "send_one_way" else everyone
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
            bus_gb_s=algorithm_gb_s * ops.bus_factor(case.op, len(case.groups[0]) if case.groups else self._world.size),
            wrong=case.wrong,
            rounds_s=tuple(float(np.median(each)) for each in taken),
            groups="; ".join(ranks_in_words(list(ranks)) for ranks in case.groups),
            calls=case.recorded.count if case.recorded else 0,
            recorded_s=case.recorded.recorded_s if case.recorded else None,
        )


def _span(of: list[int]) -> str:
    first, last = in_binary_bytes(of[0]), in_binary_bytes(of[-1])
    return first if len(of) == 1 else f"{first} to {last}"


def main() -> None:
    settings = BenchSettings.model_validate_json(sys.argv[1])
    with rollcall.init(backend=settings.backend) as world:
        results = Bench(world, settings).measure()
        if world.is_first:
            Path(os.environ["ROLLCALL_RUN"], FILE).write_text(results.model_dump_json())


if __name__ == "__main__":
    main()
