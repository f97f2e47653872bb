"""Loaders that are not rollcall's: what a Trainer needs to know about them."""

from collections.abc import Iterable, Iterator, Sized
from typing import Any

import torch
from torch.utils.data.distributed import DistributedSampler

from rollcall.train.consensus import gather, require_equal
from rollcall.train.data import Loader, Share
from rollcall.world import World


class ExternalLoader:
    """Any iterable of batches that has the same number of batches on every rank.

    One without a length, as of an IterableDataset, may have fewer batches on some ranks: the epoch ends on all ranks
    when the first of them has no batch left. To continue in mid-epoch, a loader with a state of its own (torchdata's
    StatefulDataLoader) loads it. Any other restarts the epoch with the random state that the epoch began with, and
    skips the batches that are done.
    """

    differs_by_rank = True  # its state is saved for each rank

    def __init__(self, batches: Iterable[Any], world: World, for_training: bool) -> None:
        self._batches = batches
        self._sampler = getattr(batches, "sampler", None)
        self.epoch = 0
        self.samples = 0  # counts batches: how many samples they hold is not known in advance
        self.share = Share(0, 0)
        self._rng = torch.get_rng_state()
        self._world = world
        self._is_stateful = hasattr(batches, "state_dict") and hasattr(batches, "load_state_dict")
        self._continues = False  # the loader itself knows where to continue
        self._length = length = _length_of(batches)
        found = "no length" if length is None else f"{length} batches"
        require_equal(world, "the loader", found, "use rollcall.prepare_dataloader")
        self.samples_per_epoch = length or 0
        distributed = isinstance(self._sampler, DistributedSampler)
        if for_training and length is not None and not distributed and world.size > 1 and world.is_first:
            world.logger.warning(
                "the loader has no DistributedSampler: unless it distributes the samples itself, every rank trains on "
                "every sample; rollcall.prepare_dataloader distributes them"
            )

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch, self.samples = epoch, 0

    def state_dict(self) -> dict[str, Any]:
        state = {"epoch": self.epoch, "samples": self.samples, "rng": self._rng}
        if self._is_stateful and self.samples:
            state |= {"own": self._batches.state_dict(), "ranks": self._world.size}  # type: ignore[attr-defined]
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.samples, self._rng = state["epoch"], state["samples"], state["rng"]
        if not (self._is_stateful and "own" in state):
            return
        if state["ranks"] == self._world.size:
            self._batches.load_state_dict(state["own"])  # type: ignore[attr-defined]
            self._continues = True
            return
        self.samples = 0
        if self._world.is_first:
            self._world.logger.warning(
                f"the loader's state is that of {state['ranks']} ranks, and these are {self._world.size}: "
                f"epoch {self.epoch} starts again"
            )

    def __iter__(self) -> Iterator[Any]:
        if isinstance(self._sampler, DistributedSampler):
            self._sampler.set_epoch(self.epoch)
        batches = self._resume() if self.samples else self._begin()
        for batch in batches if self._length is not None else self._while_all_have(batches):
            self.samples += 1
            self.share = Share(_count_samples(batch), 0)
            yield batch
        self.epoch, self.samples = self.epoch + 1, 0

    def _while_all_have(self, batches: Iterator[Any]) -> Iterator[Any]:
        """A rank that went on alone would wait for the others in its next step forever."""
        done = object()
        while True:
            batch = next(batches, done)
            if any(gather(self._world, batch is done)):
                return
            yield batch

    def _begin(self) -> Iterator[Any]:
        self._rng = torch.get_rng_state()
        return iter(self._batches)

    def _resume(self) -> Iterator[Any]:
        if self._continues:
            self._continues = False
            return iter(self._batches)
        current = torch.get_rng_state()
        torch.set_rng_state(self._rng)
        batches = iter(self._batches)
        for _ in range(self.samples):
            next(batches)
        torch.set_rng_state(current)
        return batches


AnyLoader = Loader | ExternalLoader


def as_loader(loader: Any, world: World, for_training: bool = True) -> AnyLoader:
    """The loader itself if `prepare_dataloader` made it; otherwise an ExternalLoader around it."""
    return loader if isinstance(loader, Loader) else ExternalLoader(loader, world, for_training)


def _length_of(batches: Iterable[Any]) -> int | None:
    try:
        return len(batches) if isinstance(batches, Sized) else None
    except TypeError:  # a DataLoader has __len__, but its IterableDataset has not
        return None


def _count_samples(batch: Any) -> int:
    """The length of the first tensor in a batch."""
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.dim() else 1
    values = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, list | tuple) else ()
    return next((_count_samples(each) for each in values), 1)
