"""`Trainer`: the training loop around a model, an optimizer and a loss, which continues after an interruption."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from rollcall.train.callbacks.callback import Callback, Callbacks, named_states
from rollcall.train.callbacks.callback import find_problem as find_callback_problem
from rollcall.train.callbacks.ema import Ema
from rollcall.train.callbacks.ema import find_problem as find_ema_problem
from rollcall.train.checkpoint.snapshot import Snapshot
from rollcall.train.checkpoint.state import Stateful
from rollcall.train.consensus import broadcast, fail_if_any
from rollcall.train.data import Loader, Share
from rollcall.train.early_stopping import EarlyStop
from rollcall.train.evaluate import compute_means
from rollcall.train.external_loader import AnyLoader, as_loader
from rollcall.train.interruptions import Interruptions
from rollcall.train.optimizers import (
    OptimizersOf,
    as_schedule,
    as_tuple,
    class_names,
    needs_loss,
    replace_parameters,
    step_schedule,
)
from rollcall.train.optimizers import find_problem as find_optimizer_problem
from rollcall.train.reporting.meter import LossMeter
from rollcall.train.reporting.metrics_log import MetricsLog
from rollcall.train.reporting.progress_bar import ProgressBar
from rollcall.train.reporting.progress_file import ProgressFile
from rollcall.train.reporting.trackers import Trackers
from rollcall.train.reporting.trackers import find_problem as find_tracker_problem
from rollcall.train.save_interval import SaveInterval
from rollcall.train.sharding.options import Fsdp
from rollcall.train.stepping import Batches, Stepper, to_device
from rollcall.train.strategies import Precision, Strategy, compiled_loss, data_ranks, unwrap, wrap
from rollcall.train.weights.initialize import Initialize
from rollcall.world import World

Metrics = dict[str, float]


class Trainer:
    """Trains `model` to minimize `loss(model(inputs), targets)`, a mean over the batch.

    For batches of another form override `compute_loss`. `snapshots` is a folder: the training saves its state there,
    and when it is started again, it continues from the newest snapshot, on any number of ranks.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: OptimizersOf,
        loss: Callable[..., torch.Tensor],
        world: World,
        *,
        strategy: Strategy | Fsdp = "ddp",
        initialize: Initialize | None = None,
        weights: str | Path | None = None,
        accumulate: int = 1,
        clip_norm: float | None = None,
        precision: Precision = "fp32",
        compile: bool | str = False,
        scheduler: Any = None,
        schedule_every: str = "epoch",
        snapshots: str | Path | None = None,
        save_every: str | int = "1 epoch",
        keep: int = 3,
        keep_every: int | None = None,
        upload: str | Path | None = None,
        verify: bool = False,
        early_stop: EarlyStop | None = None,
        evaluate: Callable[["Trainer"], Mapping[str, float]] | None = None,
        on_epoch_end: Callable[["Trainer", Metrics], None] | None = None,
        log: Callable[[Metrics], None] | None = None,
        log_every: int | None = None,
        callbacks: Sequence[Callback] = (),
        ema: float | None = None,
        track: str | Sequence[str] = (),
        config: Mapping[str, Any] | None = None,
        extra: Mapping[str, Stateful] | None = None,
        progress: bool = True,
    ) -> None:
        fail_if_any(
            world,
            _find_problem(accumulate, schedule_every, clip_norm, log_every)
            or find_callback_problem(callbacks)
            or find_ema_problem(ema)
            or (find_tracker_problem(track) if world.is_first else None)
            or (None if callable(optimizer) else find_optimizer_problem(optimizer, model)),
        )
        before = dict(model.named_parameters())
        self.world, self.loss = world, compiled_loss(loss, compile)
        self.model = wrap(
            model, world, strategy, compile=compile, precision=precision, initialize=initialize, weights=weights
        )
        self.optimizers = self._make_optimizers(optimizer, before)
        self.data_ranks = data_ranks(strategy, world)
        self.ema = Ema(unwrap(self.model), ema) if ema is not None else None
        # Ranks in tensor parallel have the same samples: the first of them counts these.
        self._counts_samples = world.rank % (world.size // self.data_ranks) == 0
        self.epoch, self.step = 0, 0  # epochs and steps done
        self.snapshot: Snapshot | None = None
        self._stepper = Stepper(
            self.model, self.optimizers, self.compute_loss, world, clip_norm, precision, self.data_ranks
        )
        self._accumulate = accumulate
        self._scheduler, self._schedule_every = as_schedule(scheduler, self.optimizers), schedule_every
        fail_if_any(world, _find_schedule_problem(self._scheduler, schedule_every))
        self._folder = Path(snapshots) if snapshots else None
        self._keeping: dict[str, Any] = {"keep": keep, "keep_every": keep_every, "upload": upload, "verify": verify}
        self._save_interval = SaveInterval.parse(save_every)
        self._early_stop, self._evaluate, self._on_epoch_end = early_stop, evaluate, on_epoch_end
        self._log, self._log_every = log, log_every
        self._callbacks, self._announced_save = Callbacks(callbacks), (-1, -1)
        self._trackers, self._project = Trackers(track), self._folder.resolve().name if self._folder else "rollcall"
        self._config = {
            **_describe_parts(model, self.optimizers),
            **{"ranks": world.size, "strategy": str(strategy), "precision": precision, "accumulate": accumulate},
            **{"clip_norm": clip_norm, "ema": ema, **(config or {})},
        }
        self._extra = {**named_states(callbacks), **({"trackers": self._trackers} if track else {}), **(extra or {})}
        self._meter = LossMeter(lags=world.device.type == "cuda")
        self._progress_bar = ProgressBar(progress and world.is_first)
        self._progress_file = ProgressFile(world.is_first)
        self._interruptions = Interruptions(world, self._meter, self._progress_bar.clear)
        self._metrics_log: MetricsLog | None = None

    def _make_optimizers(self, given: OptimizersOf, before: dict[str, nn.Parameter]) -> tuple[Optimizer, ...]:
        model = unwrap(self.model)
        if callable(given):
            made = given(model)
            fail_if_any(self.world, find_optimizer_problem(made, model))
            return as_tuple(made)
        optimizers = as_tuple(given)
        replace_parameters(optimizers, before, model)
        return optimizers

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer, or the first of several."""
        return self.optimizers[0]

    def compute_loss(self, batch: Any) -> torch.Tensor:
        """The mean loss of a batch of the form (inputs, targets)."""
        if not (isinstance(batch, list | tuple) and len(batch) == 2):
            self._stepper.fail(
                f"a batch {_describe_form(batch)}: expected (inputs, targets), or a compute_loss of your own"
            )
        inputs, targets = batch
        return self.loss(self.model(inputs), targets)

    def fit(self, loader: Any, epochs: int) -> Metrics:
        """Train until `epochs` epochs are done, including those before an interruption. Returns the last metrics."""
        fail_if_any(self.world, f"epochs is {epochs}: expected 1 or more" if epochs < 1 else None)
        batches = as_loader(loader, self.world)
        fail_if_any(self.world, _find_loader_problem(batches, self.world.size // self.data_ranks))
        self._resume(batches)
        with self._trackers.following(self.world, self._project, {**self._config, "epochs": epochs}):
            metrics: Metrics = {}
            self._callbacks.call("fit_begin", self)
            self._meter.begin_timing()
            with self._interruptions.delay_sigterm():
                while self.epoch < epochs and not (self._early_stop and self._early_stop.is_over):
                    self._train_epoch(batches, epochs)
                    metrics = self._end_epoch()
            self._callbacks.call("fit_end", self)
            self._save_last()
        return metrics

    def evaluate(self, loader: Any, prefix: str = "val_", **measures: Callable[..., torch.Tensor]) -> Metrics:
        """The mean loss over a loader's samples, and the means of `measures(outputs, targets)`."""
        functions = {"loss": self.loss, **measures}

        def compute(batch: Any) -> list[torch.Tensor]:
            if not measures:
                return [self.compute_loss(batch)]
            inputs, targets = batch
            outputs = unwrap(self.model)(inputs)
            return [function(outputs, targets) for function in functions.values()]

        batches = as_loader(loader, self.world, for_training=False)
        fail_if_any(self.world, _find_loader_problem(batches, self.world.size // self.data_ranks))
        with self.autocast():
            means = compute_means(self.model, self.world, batches, compute, len(functions))
        return {f"{prefix}{name}": mean for name, mean in zip(functions, means, strict=True)}

    def autocast(self) -> Any:
        """A context with the precision of the training, for your own code."""
        return self._stepper.autocast()

    def _resume(self, batches: AnyLoader) -> None:
        """Continue from the newest snapshot, if there is one."""
        if self._folder is None or self.snapshot is not None:
            return
        # "watch" is the name of the meter's state in snapshots of format 1.
        named = {"watch": self._meter, "early_stop": self._early_stop, **self._extra}
        self.snapshot = Snapshot(
            self._folder,
            self.world,
            self.model,
            self.optimizers,
            scheduler=self._scheduler,
            scaler=self._stepper.scaler,
            loader=batches,
            extra={name: each for name, each in named.items() if each is not None},
            tensors={f"ema.{name}": each for name, each in self.ema.averages.items()} if self.ema else None,
            **self._keeping,
        )
        self._interruptions.snapshot = self.snapshot
        if self.ema is not None:
            self.ema.wait_for_copies = self.snapshot.wait_for_copy
        progress = self.snapshot.load(prepare=lambda: self._rebuild_buckets(batches))
        self.epoch, self.step = progress.epoch, progress.step
        if self.ema is not None and not self.snapshot.has_loaded_tensors:
            self.ema.restart()
        if self.world.is_first:
            self._metrics_log = MetricsLog(self._folder, progress.step, progress.epoch)

    def _rebuild_buckets(self, batches: AnyLoader) -> None:
        """Run one backward pass before the state is loaded, because DDP rebuilds its buckets after the first one.

        The buckets determine in which order gloo adds gradients. Otherwise the first step of a resumed training would
        add in another order than the uninterrupted one, and round differently.
        """
        if isinstance(self.model, DistributedDataParallel) and self.world.size > 2:
            self._stepper.run_backward([(to_device(next(iter(batches)), self.world.device), Share(1, 0))])
            for optimizer in self.optimizers:
                optimizer.zero_grad(set_to_none=True)

    def _train_epoch(self, batches: AnyLoader, epochs: int) -> None:
        batches.set_epoch(self.epoch)
        self.model.train()
        self._callbacks.call("epoch_begin", self)
        for group in self._groups(batches):
            self._callbacks.call("step_begin", self, [batch for batch, _ in group])
            losses = self._stepper.step(group)
            self.step += 1
            if self.ema is not None:
                self.ema.update()
            for loss, (_, share) in zip(losses, group, strict=True):
                self._meter.add(loss, share.mine if self._counts_samples else 0, self.step)
            if self._scheduler is not None and self._schedule_every == "step":
                step_schedule(self._scheduler)
            self._callbacks.call("step_end", self)
            self._after_step(batches, epochs)

    def _groups(self, batches: AnyLoader) -> Iterator[Batches]:
        """The batches of each step."""
        device = self.world.device
        each = ((batch, batches.share) for batch in batches)
        if device.type != "cpu":
            each = ((to_device(batch, device), share) for batch, share in each)
        if self._accumulate == 1:
            return ([one] for one in each)
        return iter(lambda: list(itertools.islice(each, self._accumulate)), [])

    def _after_step(self, batches: AnyLoader, epochs: int) -> None:
        saves = self._save_interval.includes_step(self.step)
        logs = self._log_every is not None and self.step % self._log_every == 0
        if not (self._interruptions.sync.is_due() or saves or logs):
            return
        if self._check_interruptions(complete=saves or logs) or saves:
            self._save()
        if logs:
            self._record("step", {"loss": self._meter.mean})
        samples = self.epoch * batches.samples_per_epoch + batches.samples
        self._progress_file.write(self.step, self.epoch, samples)
        self._progress_bar.show(self.epoch, epochs, batches.samples, batches.samples_per_epoch, self._meter.mean)

    def _check_interruptions(self, complete: bool) -> bool:
        """Whether any rank says that it is time to save."""
        is_time = self._save_interval.has_passed_since(self._interruptions.last_save_s)
        return self._interruptions.check(self.step, self.epoch, is_time, complete)

    def _end_epoch(self) -> Metrics:
        is_time_to_save = self._check_interruptions(complete=True)
        metrics: Metrics = {"loss": self._meter.mean, "samples": self._meter.total_samples, **self._meter.speed()}
        if self._evaluate is not None:
            metrics |= self._evaluate(self)
        self._callbacks.call("metrics", self, metrics)
        if self._scheduler is not None and self._schedule_every == "epoch":
            step_schedule(self._scheduler, self._decisive_loss(metrics) if needs_loss(self._scheduler) else None)
        if self._early_stop is not None:
            # Rank 0 decides for all: the user's metrics may differ between ranks.
            self._early_stop.load_state_dict(broadcast(self.world, self._early_stop.after(metrics)))
        self._progress_bar.clear()
        self._record("epoch", metrics)
        if self._on_epoch_end is not None:
            self._on_epoch_end(self, metrics)
        self._callbacks.call("epoch_end", self, metrics)
        self.epoch += 1
        self._meter.begin_epoch()
        if is_time_to_save or self._save_interval.includes_epoch(self.epoch):
            self._save()
        return metrics

    def _decisive_loss(self, metrics: Metrics) -> float:
        """That of rank 0, as for early stopping; of the test data, if there are some."""
        return broadcast(self.world, metrics.get("val_loss", metrics["loss"]))

    def _save(self) -> None:
        if self.snapshot is not None and self._announced_save != (self.step, self.epoch):
            self._announced_save = (self.step, self.epoch)
            self._callbacks.call("save", self)
        self._interruptions.save(self.step, self.epoch)

    def _record(self, event: str, metrics: Mapping[str, float]) -> None:
        if not self.world.is_first:
            return
        lr = self.optimizer.param_groups[0]["lr"]
        record = {"event": event, "epoch": self.epoch, "step": self.step, **metrics, "lr": float(lr)}
        if self._metrics_log is not None:
            self._metrics_log.write(record)
        if self._log is not None:
            self._log(record)  # type: ignore[arg-type]
        self._trackers.write(record)

    def _save_last(self) -> None:
        if self.snapshot is not None:
            if self.step:
                self._save()
            self.snapshot.wait()
            self.snapshot.wait_for_upload()


def _find_problem(accumulate: int, schedule_every: str, clip_norm: float | None, log_every: int | None) -> str | None:
    if accumulate < 1:
        return f"accumulate is {accumulate}: expected 1 or more batches for a step"
    if schedule_every not in ("step", "epoch"):
        return f"schedule_every is {schedule_every!r}: use 'step' or 'epoch'"
    if clip_norm is not None and not (clip_norm > 0 and math.isfinite(clip_norm)):
        return f"clip_norm is {clip_norm}: expected a number above 0"
    if log_every is not None and log_every < 1:
        return f"log_every is {log_every}: expected 1 or more steps"
    return None


def _find_schedule_problem(schedule: Any, schedule_every: str) -> str | None:
    if schedule_every == "step" and needs_loss(schedule):
        return "schedule_every is 'step', but ReduceLROnPlateau needs the loss of an epoch: use 'epoch'"
    return None


def _describe_parts(model: nn.Module, optimizers: Sequence[Optimizer]) -> dict[str, Any]:
    """For trackers: the model, and the options of the first parameter group."""
    options = {name: value for name, value in optimizers[0].param_groups[0].items() if name != "params"}
    plain = {name: value for name, value in options.items() if isinstance(value, bool | int | float | str | tuple)}
    parameters = sum(each.numel() for each in model.parameters())
    return {**plain, "optimizer": class_names(optimizers), "model": type(model).__name__, "parameters": parameters}


def _find_loader_problem(loader: AnyLoader, tensor_parallel: int) -> str | None:
    """Ranks in tensor parallel compute each layer together: they need the same samples."""
    if isinstance(loader, Loader) and loader.ranks_per_batch != tensor_parallel:
        return (
            f"tensor_parallel is {tensor_parallel}, but the loader was made for {loader.ranks_per_batch}: "
            f"use prepare_dataloader(..., tensor_parallel={tensor_parallel})"
        )
    return None


def _describe_form(batch: Any) -> str:
    return f"has {len(batch)} parts" if isinstance(batch, list | tuple) else f"is a {type(batch).__name__}"
