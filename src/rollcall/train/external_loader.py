"""A loader that is not ours: what a Trainer needs to know of it."""

from collections.abc import Iterable, Iterator, Sized
from typing import Any

import torch
from torch.utils.data.distributed import DistributedSampler

from rollcall.train.consensus import compare
from rollcall.train.data import Loader, Share
from rollcall.world import World


class ForeignLoader:
    """Any iterable of batches, with the same number of them on every rank.

    To go on in mid-epoch it begins the epoch with the random state of then, and passes over the batches that were done.
    """

    def __init__(self, batches: Iterable[Any], world: World, learns: bool) -> None:
        self._batches, self._world = batches, world
        self.epoch = 0
        self.samples = 0  # batches, in truth: this loader does not tell samples
        self.share = Share(0, 0)
        self._rng = torch.get_rng_state()
        length = len(batches) if isinstance(batches, Sized) else None
        compare(world, "the loader", f"{length} batches" if length is not None else "no length", "use rollcall's own")
        self.samples_per_epoch = length or 0
        shares_out = isinstance(getattr(batches, "sampler", None), DistributedSampler)
        if learns and not shares_out and world.size > 1 and world.is_first:
            world.logger.warning(
                "the loader has no DistributedSampler: unless it shares out the data itself, every rank learns from "
                "every sample; rollcall.prepare_dataloader would share them out"
            )

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch, self.samples = epoch, 0

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "samples": self.samples, "rng": self._rng}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.samples, self._rng = state["epoch"], state["samples"], state["rng"]

    def __iter__(self) -> Iterator[Any]:
        sampler = getattr(self._batches, "sampler", None)
        if isinstance(sampler, DistributedSampler):
            sampler.set_epoch(self.epoch)
        batches = self._skip() if self.samples else self._begin()
        for batch in batches:
            self.samples += 1
            self.share = Share(_count(batch), 0)
            yield batch
        self.epoch, self.samples = self.epoch + 1, 0

    def _begin(self) -> Iterator[Any]:
        self._rng = torch.get_rng_state()
        return iter(self._batches)

    def _skip(self) -> Iterator[Any]:
        now = torch.get_rng_state()
        torch.set_rng_state(self._rng)
        batches = iter(self._batches)
        for _ in range(self.samples):
            next(batches)
        torch.set_rng_state(now)
        return batches


def adopt(loader: Any, world: World, learns: bool = True) -> "Loader | ForeignLoader":
    """The loader itself, if it is one of ours."""
    return loader if isinstance(loader, Loader) else ForeignLoader(loader, world, learns)


def _count(batch: Any) -> int:
    """How many samples a batch has: the length of the first tensor in it."""
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.dim() else 1
    values = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, list | tuple) else ()
    return next((_count(each) for each in values), 1)
