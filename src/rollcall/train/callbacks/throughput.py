"""Tokens a second, and model FLOP utilisation (MFU): the share of the GPU's peak that the model's arithmetic is.

The operations of one step are counted once, at the first step, by torch's FlopCounterMode. A compiled model hides them:
then six operations for each parameter and token are assumed, as is usual for transformers.
"""

import time
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from rollcall.train.callbacks.callback import Callback

if TYPE_CHECKING:
    from rollcall.train.trainer import Trainer

# Dense bf16, as the makers state it.
PEAK_FLOPS = {"H200": 989e12, "H100": 989e12, "B200": 2250e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12}


class Throughput(Callback):
    """Adds `tokens_per_s`, `flops_per_s` and, on a GPU whose peak is known, `mfu` to the metrics of each epoch.

    A sample of integers has as many tokens as its first tensor has elements; other samples count as one token.
    """

    def __init__(self, peak_flops: float | None = None, flops_per_token: float | None = None) -> None:
        self._peak_flops, self._flops_per_token = peak_flops, flops_per_token
        self._counter: FlopCounterMode | None = None
        self._tokens, self._began_s = 0, 0.0

    def epoch_begin(self, trainer: "Trainer") -> None:
        self._tokens, self._began_s = 0, time.monotonic()

    def step_begin(self, trainer: "Trainer", batches: list[Any]) -> None:
        self._tokens += sum(count_tokens(batch) for batch in batches)
        if self._flops_per_token is None:
            self._counter = FlopCounterMode(display=False)
            self._counter.__enter__()  # type: ignore[no-untyped-call]

    def step_end(self, trainer: "Trainer") -> None:
        if self._counter is None:
            return
        self._counter.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        counted = self._counter.get_total_flops() / max(self._tokens, 1)
        parameters = sum(each.numel() for each in trainer.model.parameters())
        self._flops_per_token = counted or 6.0 * parameters
        self._counter = None
        self._tokens, self._began_s = 0, time.monotonic()  # the first step is slow: it is not counted

    def metrics(self, trainer: "Trainer", metrics: dict[str, float]) -> None:
        if not self._tokens:
            return
        if trainer.world.device.type == "cuda":
            torch.cuda.synchronize()
        # Of this rank: the others take as long, and have as many samples but for the last batch.
        per_s = self._tokens / (time.monotonic() - self._began_s)
        metrics["tokens_per_s"] = per_s * trainer.data_ranks
        metrics["flops_per_s"] = per_s * (self._flops_per_token or 0.0) * trainer.data_ranks
        peak = self._peak_flops or _peak_of(trainer.world.device)
        if peak is not None:
            metrics["mfu"] = metrics["flops_per_s"] / (peak * trainer.world.size)


def count_tokens(batch: Any) -> int:
    """The elements of the first tensor, if they are integers; else its samples."""
    first = _first_tensor(batch)
    if first is None:
        return 1
    return first.numel() if not first.is_floating_point() else len(first) if first.dim() else 1


def _first_tensor(batch: Any) -> torch.Tensor | None:
    if isinstance(batch, torch.Tensor):
        return batch
    values = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, list | tuple) else ()
    return next((found for each in values if (found := _first_tensor(each)) is not None), None)


def _peak_of(device: torch.device) -> float | None:
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((flops for part, flops in PEAK_FLOPS.items() if part in name), None)
