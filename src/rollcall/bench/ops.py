"""Each op: its buffers, one call of it, what must come out, and how its bandwidth is counted.

Sizes and bandwidths are those of nccl-tests: the size is that of the larger buffer of a rank; algorithm bandwidth is
size over time; bus bandwidth is that times a factor, which makes it comparable with the speed of the hardware,
whatever the number of ranks.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from rollcall.bench.settings import Place

Call = Callable[[], object]
ROOT = 0
# torch 2.13 has new names for these, and warns of the old ones.
gather: Callable[[torch.Tensor, torch.Tensor], object] = (
    getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
)
_scatter: Callable[[torch.Tensor, torch.Tensor], object] = (
    getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
)


@dataclass(frozen=True)
class Buffers:
    """Room for what is given and what is taken; what is measured is views of it."""

    given: torch.Tensor
    taken: torch.Tensor

    @classmethod
    def of(cls, size_bytes: int, device: torch.device) -> "Buffers":
        given = torch.zeros(size_bytes, dtype=torch.uint8, device=device)
        return cls(given, torch.zeros_like(given))

    @property
    def size_bytes(self) -> int:
        return self.given.numel()

    def views(self, size_bytes: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        return self.given[:size_bytes].view(dtype), self.taken[:size_bytes].view(dtype)


@dataclass(frozen=True)
class Trial:
    """One op at one size, ready to be called as often as one likes.

    `fill` puts the known values back; `expected` are the parts of the outcome on this rank, each with the pattern
    that must repeat there.
    """

    call: Call
    fill: Call
    expected: tuple[tuple[torch.Tensor, torch.Tensor], ...] = ()
    divide: int = 1  # a call does the op so many times, one after the other

    def wrong(self) -> int:
        """How many elements are not what they must be."""
        return sum(count_wrong(part, pattern) for part, pattern in self.expected)


def count_wrong(result: torch.Tensor, pattern: torch.Tensor) -> int:
    whole = result.numel() // pattern.numel() * pattern.numel()
    rows = result[:whole].view(-1, pattern.numel())
    rest = result[whole:]
    return int((rows != pattern).sum()) + int((rest != pattern[: rest.numel()]).sum())


def spread(target: torch.Tensor, pattern: torch.Tensor) -> None:
    """Fill a tensor with a pattern, over and over."""
    whole = target.numel() // pattern.numel() * pattern.numel()
    target[:whole].view(-1, pattern.numel()).copy_(pattern)
    target[whole:].copy_(pattern[: target.numel() - whole])


def period(ranks: int) -> int:
    """After so many elements the values repeat. Small, so that sums over all ranks are exact in every dtype."""
    return 3 if 2 * ranks <= 127 else 2


def pattern(rank: int, ranks: int, like: torch.Tensor) -> torch.Tensor:
    """What a rank gives: other values on each of its neighbours, and at each place."""
    every = period(ranks)
    return torch.tensor([(place + rank) % every for place in range(every)], dtype=like.dtype, device=like.device)


def summed(ranks: int, like: torch.Tensor) -> torch.Tensor:
    every = period(ranks)
    total = [sum((place + rank) % every for rank in range(ranks)) for place in range(every)]
    return torch.tensor(total, dtype=like.dtype, device=like.device)


def real_size(op: str, size_bytes: int, element_bytes: int, ranks: int) -> int:
    """The nearest size below that has whole elements for all, and at least one each."""
    if op == "barrier":
        return 0
    unit = element_bytes * (ranks if op in ("all_gather", "reduce_scatter", "all_to_all") else 1)
    return max(size_bytes // unit, 1) * unit


def bus_factor(op: str, ranks: int) -> float:
    """From algorithm to bus bandwidth, as nccl-tests has it."""
    if op == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if op in ("all_gather", "reduce_scatter", "all_to_all") else 1.0


def places_of(op: str) -> tuple[Place, ...]:
    """Where the result may lie: apart from what was given, or in its place."""
    return ("out",) if op in ("all_to_all", "send_one_way", "send_two_way", "barrier") else ("out", "in")


def prepare(op: str, place: Place, rank: int, ranks: int, given: torch.Tensor, taken: torch.Tensor) -> Trial:
    return _PREPARE[op](_Setting(rank, ranks, given, taken if place == "out" else given, place == "in"))


@dataclass(frozen=True)
class _Setting:
    rank: int
    ranks: int
    given: torch.Tensor
    taken: torch.Tensor  # the same as given, where the op is in place
    in_place: bool

    @property
    def own(self) -> torch.Tensor:
        return pattern(self.rank, self.ranks, self.given)

    def of(self, rank: int) -> torch.Tensor:
        return pattern(rank, self.ranks, self.given)

    def share(self, tensor: torch.Tensor, rank: int) -> torch.Tensor:
        """A rank's share of a tensor."""
        size = tensor.numel() // self.ranks
        return tensor[rank * size : (rank + 1) * size]

    def turned(self, values: torch.Tensor, rank: int) -> torch.Tensor:
        """A pattern as it stands where a rank's share begins."""
        begin = rank * (self.given.numel() // self.ranks)
        return values.roll(-(begin % values.numel()))


def _all_reduce(s: _Setting) -> Trial:
    # torch reduces in place: who wants to keep what was given, must copy it, and pays for that.
    call = (
        (lambda: dist.all_reduce(s.given))
        if s.in_place
        else (lambda: (s.taken.copy_(s.given), dist.all_reduce(s.taken)))
    )
    return Trial(call, lambda: spread(s.given, s.own), ((s.taken, summed(s.ranks, s.given)),))


def _broadcast(s: _Setting) -> Trial:
    is_root = s.rank == ROOT
    call = (
        (lambda: (s.taken.copy_(s.given), dist.broadcast(s.taken, ROOT)))
        if is_root and not s.in_place
        else (lambda: dist.broadcast(s.taken, ROOT))
    )
    return Trial(call, lambda: spread(s.given, s.own), ((s.taken, s.of(ROOT)),))


def _reduce(s: _Setting) -> Trial:
    call = (
        (lambda: dist.reduce(s.given, ROOT))
        if s.in_place
        else (lambda: (s.taken.copy_(s.given), dist.reduce(s.taken, ROOT)))
    )
    expected = ((s.taken, summed(s.ranks, s.given)),) if s.rank == ROOT else ()
    return Trial(call, lambda: spread(s.given, s.own), expected)


def _all_gather(s: _Setting) -> Trial:
    own = s.share(s.taken if s.in_place else s.given, s.rank)
    expected = tuple((s.share(s.taken, rank), s.of(rank)) for rank in range(s.ranks))
    return Trial(lambda: gather(s.taken, own), lambda: spread(own, s.own), expected)


def _reduce_scatter(s: _Setting) -> Trial:
    own = s.share(s.given, s.rank) if s.in_place else s.share(s.taken, 0)
    expected = ((own, s.turned(summed(s.ranks, s.given), s.rank)),)
    return Trial(lambda: _scatter(own, s.given), lambda: spread(s.given, s.own), expected)


def _all_to_all(s: _Setting) -> Trial:
    expected = tuple((s.share(s.taken, rank), s.turned(s.of(rank), s.rank)) for rank in range(s.ranks))
    return Trial(lambda: dist.all_to_all_single(s.taken, s.given), lambda: spread(s.given, s.own), expected)


def _send_one_way(s: _Setting) -> Trial:
    """There and back between the first rank and the last, which are on different hosts where there are several."""
    last = s.ranks - 1

    def there() -> None:
        dist.send(s.given, last)
        dist.recv(s.taken, last)

    def back() -> None:
        dist.recv(s.taken, 0)
        dist.send(s.given, 0)

    if s.rank not in (0, last):
        return Trial(lambda: None, lambda: None, divide=2)
    call, other = (there, last) if s.rank == 0 else (back, 0)
    return Trial(call, lambda: spread(s.given, s.own), ((s.taken, s.of(other)),), divide=2)


def _send_two_way(s: _Setting) -> Trial:
    """All at once, each to the next, as nccl-tests' sendrecv."""
    following, before = (s.rank + 1) % s.ranks, (s.rank - 1) % s.ranks

    def call() -> None:
        sent = dist.isend(s.given, following)
        dist.recv(s.taken, before)
        if sent is not None:
            sent.wait()

    return Trial(call, lambda: spread(s.given, s.own), ((s.taken, s.of(before)),))


def _barrier(s: _Setting) -> Trial:
    ids = [s.given.device.index] if s.given.device.type == "cuda" else None
    return Trial(lambda: dist.barrier(device_ids=ids), lambda: None)


_PREPARE: dict[str, Callable[[_Setting], Trial]] = {
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
