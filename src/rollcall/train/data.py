"""Which rank trains on which sample: every sample once per epoch, at any world size, also after an interruption.

All ranks use the same order of samples. It is cut into global batches of `batch_size` × ranks samples, and each rank
takes its slice of each global batch. So one number, the samples of this epoch that are done, is the position in the
data, and a training can continue from it on any number of ranks.
"""

import functools
import signal
from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch.utils.data import DataLoader, Dataset, Sampler, TensorDataset

from rollcall.train.consensus import fail_if_any, require_equal
from rollcall.units import plural
from rollcall.world import World

Uneven = Literal["weigh", "drop"]


@dataclass(frozen=True)
class Share:
    """How many samples of a global batch this rank has (`mine`), and all ranks together (`all`)."""

    mine: int
    all: int


class RankBatchSampler(Sampler[list[int]]):
    """The batches of one rank, as lists of indices into the dataset."""

    def __init__(
        self, length: int, rank: int, world_size: int, batch_size: int, shuffle: bool, seed: int, uneven: Uneven
    ) -> None:
        self._length, self._rank, self._world_size = length, rank, world_size
        self._batch_size, self._shuffle, self._seed = batch_size, shuffle, seed
        self.samples_per_epoch = length - length % self.global_batch if uneven == "drop" else length
        self.epoch = 0
        self.start = 0

    @property
    def global_batch(self) -> int:
        return self._batch_size * self._world_size

    def begin(self, epoch: int, start: int) -> None:
        """Choose the epoch of the next iteration, and its first sample."""
        self.epoch, self.start = epoch, start

    def spans(self) -> Iterator[tuple[int, int]]:
        """The remaining global batches: their first position in the epoch's order, and the one after their last."""
        for first in range(self.start, self.samples_per_epoch, self.global_batch):
            yield first, min(first + self.global_batch, self.samples_per_epoch)

    def share(self, first: int, last: int) -> Share:
        low, high = self._slice(first, last)
        return Share(high - low, last - first)

    def __len__(self) -> int:
        return -(-self.samples_per_epoch // self.global_batch)

    def __iter__(self) -> Iterator[list[int]]:
        order = self._order()
        for first, last in self.spans():
            low, high = self._slice(first, last)
            # A rank that gets no sample of a short last batch still has to take part in the step's collectives: it
            # gets one sample, of weight 0.
            yield order[low:high] if high > low else order[first : first + 1]

    def _slice(self, first: int, last: int) -> tuple[int, int]:
        count = last - first
        return first + count * self._rank // self._world_size, first + count * (self._rank + 1) // self._world_size

    def _order(self) -> list[int]:
        if not self._shuffle:
            return list(range(self._length))
        generator = torch.Generator().manual_seed(self._seed + self.epoch)
        return cast(list[int], torch.randperm(self._length, generator=generator).tolist())


class Loader:
    """The batches of this rank. Its state is the position in the data, which a snapshot saves.

    Multiply the mean loss of a batch by `weight`: then the average of all ranks' gradients is the mean over all
    samples. It is 1 except for a last batch in which some ranks have fewer samples.
    """

    def __init__(
        self, sampler: RankBatchSampler, batches: "DataLoader[Any]", world: World, seed: int, ranks_per_batch: int = 1
    ) -> None:
        self._sampler, self._batches = sampler, batches
        self.ranks_per_batch = ranks_per_batch  # ranks in tensor parallel have the same batches
        self._data_ranks = world.size // ranks_per_batch
        self._worker_seed = seed * 1_000_003 + world.rank // ranks_per_batch
        self.epoch = 0
        self.samples = 0  # of this epoch that all ranks together have received
        self.share = Share(0, 0)

    def set_epoch(self, epoch: int) -> None:
        """Choose the next epoch. If it is the current one, the next iteration continues where the last one stopped."""
        if epoch != self.epoch:
            self.epoch, self.samples = epoch, 0

    @property
    def weight(self) -> float:
        return self.share.mine * self._data_ranks / self.share.all

    @property
    def samples_per_epoch(self) -> int:
        return self._sampler.samples_per_epoch

    @property
    def dataset(self) -> "Dataset[Any]":
        return self._batches.dataset

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "samples": self.samples}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.samples = state["epoch"], state["samples"]

    def __len__(self) -> int:
        """The number of batches in a whole epoch."""
        return len(self._sampler)

    def __iter__(self) -> Iterator[Any]:
        self._sampler.begin(self.epoch, self.samples)
        # Torch draws the seed of the workers from this generator. From the global generator it would take a number
        # more after each interruption, and the result would differ.
        generator = cast(torch.Generator, self._batches.generator)
        generator.manual_seed(self._worker_seed + self.epoch * 7919 + self.samples)
        for (first, last), batch in zip(self._sampler.spans(), self._batches, strict=True):
            self.share = self._sampler.share(first, last)
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
    tensor_parallel: int = 1,
    **options: Any,
) -> Loader:
    """Batches of `batch_size` samples for each rank. `options` are those of torch's DataLoader.

    So many neighbouring ranks as `tensor_parallel` says have the same batches.

    `uneven` is about samples that do not fill the last batch on all ranks: "weigh" distributes them and weighs each
    rank's loss, so that every sample counts once; "drop" leaves them out.
    """
    ranks = world.size // tensor_parallel if tensor_parallel > 0 else 0
    fail_if_any(
        world,
        f"tensor_parallel is {tensor_parallel}, which does not divide {world.size} ranks"
        if ranks * tensor_parallel != world.size
        else _find_problem(dataset, batch_size, uneven, ranks),
    )
    length = len(dataset)  # type: ignore[arg-type]
    require_equal(world, "the dataset", f"{length} samples", "give all ranks the same data")
    sampler = RankBatchSampler(length, world.rank // tensor_parallel, ranks, batch_size, shuffle, seed, uneven)
    if world.is_first and sampler.samples_per_epoch < length:
        world.logger.warning(
            f"{length - sampler.samples_per_epoch} of {length} samples are left out of each epoch (uneven='drop'): "
            f"they do not fill a batch of {batch_size} on all {world.size} ranks"
        )
    if type(dataset) is TensorDataset and "collate_fn" not in options:
        dataset, options = _TensorRows(dataset), {**options, "collate_fn": _keep}
    if options.get("num_workers"):
        options = {**options, "worker_init_fn": functools.partial(_start_worker, options.get("worker_init_fn"))}
    batches: DataLoader[Any] = DataLoader(dataset, batch_sampler=sampler, generator=torch.Generator(), **options)
    return Loader(sampler, batches, world, seed, tensor_parallel)


def _find_problem(dataset: "Dataset[Any]", batch_size: int, uneven: str, ranks: int) -> str | None:
    if not isinstance(dataset, Sized):
        return (
            f"the dataset ({type(dataset).__name__}) has no length: use one with a length, or give the Trainer a "
            "loader of your own that distributes the samples"
        )
    length = len(dataset)
    if not isinstance(batch_size, int) or batch_size < 1:
        return f"batch_size is {batch_size}: expected 1 or more samples for each rank"
    if uneven not in ("weigh", "drop"):
        return f"uneven is {uneven!r}: use 'weigh' or 'drop'"
    if length == 0:
        return "the dataset is empty: expected at least one sample for each rank"
    if length < ranks:
        return f"the dataset has {plural(length, 'sample')} for {ranks} ranks: start at most {length}"
    if uneven == "drop" and length < batch_size * ranks:
        return (
            f"uneven='drop' would leave out all {length} samples, which do not fill one batch of {batch_size} on "
            f"{ranks} ranks: use a smaller batch_size, or 'weigh'"
        )
    return None


class _TensorRows(Dataset[Any]):
    """A TensorDataset that returns a whole batch with one index operation: faster than sample by sample."""

    def __init__(self, dataset: TensorDataset) -> None:
        self.tensors = dataset.tensors

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, index: int) -> list[torch.Tensor]:
        return [tensor[index] for tensor in self.tensors]

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        rows = torch.tensor(indices)
        return [tensor[rows] for tensor in self.tensors]


def _start_worker(user_init: Callable[[int], Any] | None, number: int) -> None:
    # A launcher may send SIGTERM to the whole process group. The rank then still needs its workers, to finish its step
    # and save.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if user_init is not None:
        user_init(number)


def _keep(batch: list[torch.Tensor]) -> list[torch.Tensor]:
    return batch
