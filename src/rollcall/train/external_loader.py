"""Loaders that are not rollcall's: what a Trainer needs to know about them."""

from collections.abc import Iterable, Iterator, Sized
from typing import Any

import torch
from torch.utils.data.distributed import DistributedSampler

from rollcall.train.consensus import require_equal
from rollcall.train.data import Loader, Share
from rollcall.world import World


class ExternalLoader:
    """Any iterable of batches that has the same number of batches on every rank.

    To continue in mid-epoch, it restarts the epoch with the random state that the epoch began with, and skips the
    batches that are done.
    """

    def __init__(self, batches: Iterable[Any], world: World, for_training: bool) -> None:
        self._batches = batches
        self._sampler = getattr(batches, "sampler", None)
        self.epoch = 0
        self.samples = 0  # counts batches: how many samples they hold is not known in advance
        self.share = Share(0, 0)
        self._rng = torch.get_rng_state()
        length = len(batches) if isinstance(batches, Sized) else None
        found = "no length" if length is None else f"{length} batches"
        require_equal(world, "the loader", found, "use rollcall.prepare_dataloader")
        self.samples_per_epoch = length or 0
        distributed = isinstance(self._sampler, DistributedSampler)
        if for_training and not distributed and world.size > 1 and world.is_first:
            world.logger.warning(
                "the loader has no DistributedSampler: unless it distributes the samples itself, every rank trains on "
                "every sample; rollcall.prepare_dataloader distributes them"
            )

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch, self.samples = epoch, 0

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "samples": self.samples, "rng": self._rng}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.samples, self._rng = state["epoch"], state["samples"], state["rng"]

    def __iter__(self) -> Iterator[Any]:
        if isinstance(self._sampler, DistributedSampler):
            self._sampler.set_epoch(self.epoch)
        for batch in self._resume() if self.samples else self._begin():
            self.samples += 1
            self.share = Share(_count_samples(batch), 0)
            yield batch
        self.epoch, self.samples = self.epoch + 1, 0

    def _begin(self) -> Iterator[Any]:
        self._rng = torch.get_rng_state()
        return iter(self._batches)

    def _resume(self) -> Iterator[Any]:
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


def _count_samples(batch: Any) -> int:
    """The length of the first tensor in a batch."""
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.dim() else 1
    values = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, list | tuple) else ()
    return next((_count_samples(each) for each in values), 1)
