"""Which rank learns from which sample: every sample once per epoch, at any world size, also after an interruption.

All ranks walk through one common order of the epoch, in global batches of `batch_size` × ranks samples, and each takes
its slice of each. So the same samples make up the same step however many ranks there are, and one number, how many
samples of the epoch are done, tells where to go on: with other ranks, too.
"""

import functools
import signal
from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch.utils.data import DataLoader, Dataset, Sampler, TensorDataset

from rollcall.train.consensus import compare, refuse_together
from rollcall.world import World

Uneven = Literal["weigh", "drop"]


@dataclass(frozen=True)
class Share:
    """How many samples of a global batch are this rank's, and how many there are."""

    mine: int
    all: int


class Shards(Sampler[list[int]]):
    """The batches of one rank, as indices."""

    def __init__(
        self, length: int, rank: int, world_size: int, batch_size: int, shuffle: bool, seed: int, uneven: Uneven
    ) -> None:
        self._length, self._rank, self._world_size = length, rank, world_size
        self._batch_size, self._shuffle, self._seed = batch_size, shuffle, seed
        whole = length - length % self.global_batch
        self.samples_per_epoch = whole if uneven == "drop" else length
        self._whole_share = Share(batch_size, self.global_batch)  # of nearly all batches
        self.epoch = 0
        self.start = 0

    @property
    def global_batch(self) -> int:
        return self._batch_size * self._world_size

    def begin(self, epoch: int, start: int) -> None:
        """What the next iteration walks through: an epoch, from this sample on."""
        self.epoch, self.start = epoch, start

    def spans(self) -> Iterator[tuple[int, int]]:
        """The global batches that are left, as spans of the epoch's order."""
        for first in range(self.start, self.samples_per_epoch, self.global_batch):
            yield first, min(first + self.global_batch, self.samples_per_epoch)

    def share(self, first: int, last: int) -> Share:
        if last - first == self._whole_share.all:
            return self._whole_share
        low, high = self._slice(first, last)
        return Share(high - low, last - first)

    def __len__(self) -> int:
        return -(-self.samples_per_epoch // self.global_batch)

    def __iter__(self) -> Iterator[list[int]]:
        order = self._order()
        for first, last in self.spans():
            low, high = self._slice(first, last)
            # A rank that gets nothing of a short last batch still has to take part in the step: with a sample
            # that counts for nothing.
            yield order[low:high] if high > low else order[first : first + 1]

    def _slice(self, first: int, last: int) -> tuple[int, int]:
        count = last - first
        low, high = (first + count * each // self._world_size for each in (self._rank, self._rank + 1))
        return low, high

    def _order(self) -> list[int]:
        if not self._shuffle:
            return list(range(self._length))
        generator = torch.Generator().manual_seed(self._seed + self.epoch)
        return cast(list[int], torch.randperm(self._length, generator=generator).tolist())


class Loader:
    """Batches of this rank. Knows where it is, so that a snapshot can say where to go on.

    `weight` is by how much to multiply the mean loss of the batch just given out, so that the average of all
    ranks' gradients is that of all samples: 1, but for a last batch that is short on some ranks.
    """

    def __init__(self, shards: Shards, batches: "DataLoader[Any]", world_size: int, rank: int, seed: int) -> None:
        self._shards, self._batches, self._world_size = shards, batches, world_size
        self._worker_seed = seed * 1_000_003 + rank
        self.epoch = 0
        self.samples = 0  # of this epoch, on all ranks together, given out so far
        self.share = Share(0, 0)

    def set_epoch(self, epoch: int) -> None:
        """The epoch that comes next. In the one it is in already, it goes on where it is."""
        if epoch != self.epoch:
            self.epoch, self.samples = epoch, 0

    @property
    def weight(self) -> float:
        return self.share.mine * self._world_size / self.share.all

    @property
    def samples_per_epoch(self) -> int:
        return self._shards.samples_per_epoch

    @property
    def dataset(self) -> "Dataset[Any]":
        return self._batches.dataset

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "samples": self.samples}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.samples = state["epoch"], state["samples"]

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return len(self._shards)

    def __iter__(self) -> Iterator[Any]:
        self._shards.begin(self.epoch, self.samples)
        # Of its own: the seed that torch draws for the workers must not come from the program's generator, which
        # would then differ after an interruption.
        generator = cast(torch.Generator, self._batches.generator)
        generator.manual_seed(self._worker_seed + self.epoch * 7919 + self.samples)
        for (first, last), batch in zip(self._shards.spans(), self._batches, strict=True):
            self.share = self._shards.share(first, last)
            self.samples = last
            yield batch
        self.epoch, self.samples = self.epoch + 1, 0


def prepare_dataloader(
    dataset: "Dataset[Any]",
    world: World,
    batch_size: int = 32,
    *,
    shuffle: bool = True,
    seed: int = 0,
    uneven: Uneven = "weigh",
    **options: Any,
) -> Loader:
    """The dataset in batches of `batch_size` for each rank; `options` are those of torch's DataLoader.

    Where the samples do not fill the last batch on all ranks, "weigh" shares them out and weighs them, so that every
    sample counts once; "drop" leaves them out.
    """
    refuse_together(world, _what_is_wrong(dataset, batch_size, uneven, world.size))
    length = len(dataset)  # type: ignore[arg-type]
    compare(world, "the dataset", f"{length} samples", "give all ranks the same data")
    shards = Shards(length, world.rank, world.size, batch_size, shuffle, seed, uneven)
    if world.is_first and uneven == "drop" and shards.samples_per_epoch < length:
        left_out = length - shards.samples_per_epoch
        world.logger.warning(
            "%d of %d samples are left out of each epoch (uneven='drop'): they fill no batch of %d on all %d ranks",
            left_out,
            length,
            batch_size,
            world.size,
        )
    if type(dataset) is TensorDataset and "collate_fn" not in options:
        dataset, options = _Rows(dataset), {**options, "collate_fn": _as_it_is}
    if options.get("num_workers"):
        options = {**options, "worker_init_fn": functools.partial(_start_worker, options.get("worker_init_fn"))}
    batches: DataLoader[Any] = DataLoader(dataset, batch_sampler=shards, generator=torch.Generator(), **options)
    return Loader(shards, batches, world.size, world.rank, seed)


def _what_is_wrong(dataset: "Dataset[Any]", batch_size: int, uneven: str, ranks: int) -> str | None:
    if not isinstance(dataset, Sized):
        return (
            f"the dataset ({type(dataset).__name__}) has no length: use one that has, or give the Trainer a loader of "
            "your own that shares it out"
        )
    length = len(dataset)
    if not isinstance(batch_size, int) or batch_size < 1:
        return f"batch_size is {batch_size}: expected 1 or more samples for each rank"
    if uneven not in ("weigh", "drop"):
        return f"uneven is {uneven!r}: use 'weigh' or 'drop'"
    if length == 0:
        return "the dataset is empty: expected at least one sample for each rank"
    if length < ranks:
        return f"the dataset has {length} sample{'s' * (length > 1)} for {ranks} ranks: start at most {length}"
    if uneven == "drop" and length < batch_size * ranks:
        return (
            f"uneven='drop' would leave out all {length} samples, which do not fill one batch of {batch_size} on "
            f"{ranks} ranks: use a smaller batch_size, or 'weigh'"
        )
    return None


class _Rows(Dataset[Any]):
    """A TensorDataset from which a batch is taken with one index, not sample by sample: the same batch, sooner."""

    def __init__(self, dataset: TensorDataset) -> None:
        self.tensors = dataset.tensors

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, index: int) -> list[torch.Tensor]:
        return [tensor[index] for tensor in self.tensors]

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        rows = torch.tensor(indices)
        return [tensor[rows] for tensor in self.tensors]


def _start_worker(theirs: Callable[[int], Any] | None, number: int) -> None:
    # A launcher that ends a run tells the whole process group. The rank still needs its workers then, to come to the
    # end of its step and save.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if theirs is not None:
        theirs(number)


def _as_it_is(batch: list[torch.Tensor]) -> list[torch.Tensor]:
    return batch
