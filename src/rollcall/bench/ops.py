"""Each op: its buffers, one call, the expected result, and the definition of its bandwidth.

Sizes and bandwidths are defined as in nccl-tests: the size is that of the larger buffer of a rank; algorithm bandwidth
is size over time; bus bandwidth is that times a factor, so that it can be compared with the speed of the hardware for
any number of ranks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist

from rollcall.bench.settings import Placement

ROOT = 0
# torch 2.13 renamed these, and warns about the old names.
gather: Callable[..., object] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_scatter: Callable[..., object] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True)
class Buffers:
    """Memory for the largest input and output; each size uses a part of it."""

    input: torch.Tensor
    output: torch.Tensor

    @classmethod
    def of(cls, size_bytes: int, device: torch.device) -> "Buffers":
        input = torch.zeros(size_bytes, dtype=torch.uint8, device=device)
        return cls(input, torch.zeros_like(input))

    @property
    def size_bytes(self) -> int:
        return self.input.numel()

    def views(self, size_bytes: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        return self.input[:size_bytes].view(dtype), self.output[:size_bytes].view(dtype)


@dataclass(frozen=True)
class Trial:
    """One op at one size, ready to be called many times.

    `fill` writes the known values into the input; `expected` lists parts of the result on this rank, each with the
    pattern that must repeat in it.
    """

    call: Callable[[], object]
    fill: Callable[[], object]
    expected: tuple[tuple[torch.Tensor, torch.Tensor], ...] = ()
    ops_per_call: int = 1

    def wrong(self) -> int:
        """The number of wrong elements in the result."""
        return sum(count_wrong(part, pattern) for part, pattern in self.expected)


def count_wrong(result: torch.Tensor, pattern: torch.Tensor) -> int:
    whole = result.numel() // pattern.numel() * pattern.numel()
    rows = result[:whole].view(-1, pattern.numel())
    rest = result[whole:]
    return int((rows != pattern).sum()) + int((rest != pattern[: rest.numel()]).sum())


def fill_with(target: torch.Tensor, pattern: torch.Tensor) -> None:
    """Fill a tensor with a repeated pattern."""
    whole = target.numel() // pattern.numel() * pattern.numel()
    target[:whole].view(-1, pattern.numel()).copy_(pattern)
    target[whole:].copy_(pattern[: target.numel() - whole])


def period(ranks: int) -> int:
    """The length of a pattern. Its values are small, so that sums over all ranks are exact in every dtype."""
    return 3 if 2 * ranks <= 127 else 2


def pattern(rank: int, ranks: int, like: torch.Tensor) -> torch.Tensor:
    """The input of a rank: it differs from that of its neighbours, and from place to place."""
    every = period(ranks)
    return torch.tensor([(place + rank) % every for place in range(every)], dtype=like.dtype, device=like.device)


def sum_pattern(ranks: int, like: torch.Tensor) -> torch.Tensor:
    every = period(ranks)
    total = [sum((place + rank) % every for rank in range(ranks)) for place in range(every)]
    return torch.tensor(total, dtype=like.dtype, device=like.device)


def rounded_size(op: str, size_bytes: int, element_bytes: int, ranks: int) -> int:
    """The size rounded down to whole elements for every rank, but at least one for each."""
    if op == "barrier":
        return 0
    unit = element_bytes * (ranks if op in ("all_gather", "reduce_scatter", "all_to_all") else 1)
    return max(size_bytes // unit, 1) * unit


def bus_factor(op: str, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth, as nccl-tests defines it."""
    if op == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if op in ("all_gather", "reduce_scatter", "all_to_all") else 1.0


def placements_of(op: str) -> tuple[Placement, ...]:
    """Out of place (the input is kept) and, if the op can do it, in place (the result overwrites the input)."""
    return ("out",) if op in ("all_to_all", "send_one_way", "send_two_way", "barrier") else ("out", "in")


def prepare(
    op: str,
    place: Placement,
    rank: int,
    ranks: int,
    input: torch.Tensor,
    output: torch.Tensor,
    group: "Members | None" = None,
) -> Trial:
    """`rank` and `ranks` are those in the group, by default in the world."""
    members = group or Members(None, tuple(range(ranks)))
    return _PREPARE[op](_Context(rank, ranks, input, output if place == "out" else input, place == "in", members))


@dataclass(frozen=True)
class Members:
    """A group, and the ranks of the world that are in it."""

    group: dist.ProcessGroup | None
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class _Context:
    rank: int
    ranks: int
    input: torch.Tensor
    output: torch.Tensor  # in place, the same tensor as the input
    in_place: bool
    members: Members

    @property
    def group(self) -> dist.ProcessGroup | None:
        return self.members.group

    @property
    def own(self) -> torch.Tensor:
        return pattern(self.rank, self.ranks, self.input)

    def of(self, rank: int) -> torch.Tensor:
        return pattern(rank, self.ranks, self.input)

    def part(self, tensor: torch.Tensor, rank: int) -> torch.Tensor:
        """The part of a tensor that belongs to a rank."""
        size = tensor.numel() // self.ranks
        return tensor[rank * size : (rank + 1) * size]

    def rotated(self, values: torch.Tensor, rank: int) -> torch.Tensor:
        """The pattern as it is at the start of a rank's part."""
        begin = rank * (self.input.numel() // self.ranks)
        return values.roll(-(begin % values.numel()))


def _fill(s: _Context) -> Callable[[], object]:
    """torch reduces and broadcasts in place. Out of place, the input is copied before the calls: no copy is timed."""

    def fill() -> None:
        fill_with(s.input, s.own)
        if not s.in_place:
            s.output.copy_(s.input)

    return fill


def _all_reduce(s: _Context) -> Trial:
    expected = ((s.output, sum_pattern(s.ranks, s.input)),)
    return Trial(lambda: dist.all_reduce(s.output, group=s.group), _fill(s), expected)


def _broadcast(s: _Context) -> Trial:
    root = s.members.ranks[ROOT]
    return Trial(lambda: dist.broadcast(s.output, root, group=s.group), _fill(s), ((s.output, s.of(ROOT)),))


def _reduce(s: _Context) -> Trial:
    root = s.members.ranks[ROOT]
    expected = ((s.output, sum_pattern(s.ranks, s.input)),) if s.rank == ROOT else ()
    return Trial(lambda: dist.reduce(s.output, root, group=s.group), _fill(s), expected)


def _all_gather(s: _Context) -> Trial:
    own = s.part(s.output if s.in_place else s.input, s.rank)
    expected = tuple((s.part(s.output, rank), s.of(rank)) for rank in range(s.ranks))
    return Trial(lambda: gather(s.output, own, group=s.group), lambda: fill_with(own, s.own), expected)


def _reduce_scatter(s: _Context) -> Trial:
    own = s.part(s.input, s.rank) if s.in_place else s.part(s.output, 0)
    expected = ((own, s.rotated(sum_pattern(s.ranks, s.input), s.rank)),)
    return Trial(lambda: _scatter(own, s.input, group=s.group), lambda: fill_with(s.input, s.own), expected)


def _all_to_all(s: _Context) -> Trial:
    expected = tuple((s.part(s.output, rank), s.rotated(s.of(rank), s.rank)) for rank in range(s.ranks))
    call = partial(dist.all_to_all_single, s.output, s.input, group=s.group)
    return Trial(call, lambda: fill_with(s.input, s.own), expected)


def _send_one_way(s: _Context) -> Trial:
    """There and back between the first rank and the last, which are on different hosts if there are several."""
    last = s.ranks - 1

    def there() -> None:
        dist.send(s.input, last)
        dist.recv(s.output, last)

    def back() -> None:
        dist.recv(s.output, 0)
        dist.send(s.input, 0)

    if s.rank not in (0, last):
        return Trial(lambda: None, lambda: None, ops_per_call=2)
    call, other = (there, last) if s.rank == 0 else (back, 0)
    return Trial(call, lambda: fill_with(s.input, s.own), ((s.output, s.of(other)),), ops_per_call=2)


def _send_two_way(s: _Context) -> Trial:
    """Every rank sends to the next one at the same time, like sendrecv of nccl-tests."""
    following, before = (s.rank + 1) % s.ranks, (s.rank - 1) % s.ranks

    def call() -> None:
        sent = dist.isend(s.input, following)
        dist.recv(s.output, before)
        if sent is not None:
            sent.wait()

    return Trial(call, lambda: fill_with(s.input, s.own), ((s.output, s.of(before)),))


def _barrier(s: _Context) -> Trial:
    ids = [s.input.device.index] if s.input.device.type == "cuda" else None
    return Trial(lambda: dist.barrier(group=s.group, device_ids=ids), lambda: None)


_PREPARE: dict[str, Callable[[_Context], Trial]] = {
    "all_reduce": _all_reduce,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "send_one_way": _send_one_way,
    "send_two_way": _send_two_way,
    "barrier": _barrier,
}
