"""One optimizer step: forward and backward for each of its batches, then clip the gradients, then update."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, get_args

import torch
from torch import nn
from torch.optim import Optimizer

from rollcall.errors import UsageError
from rollcall.train.consensus import fail_if_any
from rollcall.train.data import Share
from rollcall.train.sharding.clipping import clip_gradients
from rollcall.train.strategies import DTYPES, Precision, averages_gradients, is_sharded, without_gradient_sync
from rollcall.world import World

Batches = list[tuple[Any, Share]]


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch with all its tensors on this device. Loaders give tensors on the CPU."""
    if device.type == "cpu":
        return batch
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {name: to_device(each, device) for name, each in batch.items()}
    if isinstance(batch, list | tuple):
        return [to_device(each, device) for each in batch]
    return batch


class Stepper:
    """`compute_loss` gives the mean loss of one batch."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        compute_loss: Callable[[Any], torch.Tensor],
        world: World,
        clip_norm: float | None,
        precision: Precision,
        data_ranks: int,
    ) -> None:
        if precision not in get_args(Precision):
            raise UsageError(f"precision is {precision!r}: use {', '.join(get_args(Precision))}")
        self._model, self._optimizers, self._compute_loss, self._world = model, optimizers, compute_loss, world
        self._clip_norm = clip_norm
        self._is_sharded = is_sharded(model)
        # A sharded model computes in that precision itself.
        self._dtype = None if self._is_sharded else DTYPES.get(precision)
        self._averages = averages_gradients(model) or world.size == 1
        self._ranks_averaged = data_ranks if averages_gradients(model) else 1
        self._checked = False
        # Only fp16 needs it: small gradients would become 0 in its range.
        self.scaler = torch.amp.GradScaler(world.device.type) if precision == "fp16" else None

    def step(self, batches: Batches) -> list[torch.Tensor]:
        """Take a step. Returns the losses of its batches, still on the device."""
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)
        losses = self.run_backward(batches)
        if self._clip_norm is not None:
            self._clip(self._clip_norm)
        for optimizer in self._optimizers:
            if self.scaler is None:
                optimizer.step()
            else:
                self.scaler.step(optimizer)
        if self.scaler is not None:
            self.scaler.update()
        return losses

    def _clip(self, most: float) -> None:
        if self.scaler is not None:
            for optimizer in self._optimizers:
                self.scaler.unscale_(optimizer)
        if self._is_sharded:
            clip_gradients(self._model.parameters(), most, self._world)
        else:
            nn.utils.clip_grad_norm_(self._model.parameters(), most)

    def run_backward(self, batches: Batches) -> list[torch.Tensor]:
        """Forward and backward. Ranks average their gradients at the last batch only."""
        weights = self._weigh(batches)
        losses = []
        for (batch, _), weight in zip(batches[:-1], weights[:-1], strict=True):
            with without_gradient_sync(self._model):
                losses.append(self._backward(batch, weight))
        losses.append(self._backward(batches[-1][0], weights[-1]))
        return losses

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self._dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self._world.device.type, self._dtype)

    def _backward(self, batch: Any, weight: float) -> torch.Tensor:
        with self.autocast():
            loss = self._compute_loss(batch)
        if not self._checked or loss.dim():
            self._check(loss)
        weighted = loss if weight == 1.0 else loss * weight
        if self.scaler is not None:
            weighted = self.scaler.scale(weighted)
        weighted.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _weigh(self, batches: Batches) -> list[float]:
        """Weights that make the sum over batches, averaged over ranks, the mean over all samples of the step."""
        if not self._averages:  # strategy "none": each rank trains alone
            total = sum(share.mine for _, share in batches)
            return [share.mine / total if total else 0.0 for _, share in batches]
        total = sum(share.all for _, share in batches)
        if not total:  # an external loader: every batch has the same weight
            return [1 / len(batches)] * len(batches)
        return [share.mine * self._ranks_averaged / total for _, share in batches]

    def _check(self, loss: Any) -> None:
        """What is wrong with a loss shows at the first step, where all ranks check together."""
        problem = None
        if not isinstance(loss, torch.Tensor):
            problem = f"the loss is a {type(loss).__name__}: expected a tensor"
        elif loss.dim():
            problem = f"the loss has the shape {list(loss.shape)}: expected a scalar, such as its mean"
        elif not loss.requires_grad:
            problem = "the loss does not depend on the model's parameters: it has no gradient"
        self.fail(problem)

    def fail(self, problem: str | None) -> None:
        """At the first step all ranks fail together; later this rank alone, because the others do not check."""
        if self._checked and problem:
            raise UsageError(f"rank {self._world.rank}: {problem}")
        self._checked = True
        fail_if_any(self._world, problem)
