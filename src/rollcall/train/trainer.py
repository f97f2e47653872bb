"""`Trainer`: the loop around a model, an optimizer and a loss, which goes on after whatever interrupts it."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from rollcall.train.checkpoint.snapshot import Snapshot
from rollcall.train.checkpoint.state import Stateful
from rollcall.train.consensus import refuse_together, tell
from rollcall.train.data import Loader, Share
from rollcall.train.early_stopping import EarlyStop
from rollcall.train.evaluate import measure
from rollcall.train.external_loader import ForeignLoader, adopt
from rollcall.train.interruptions import Watch
from rollcall.train.metrics_log import NAME, Journal
from rollcall.train.progress_bar import Bar
from rollcall.train.save_interval import Pace
from rollcall.train.stepping import Batches, Precision, Stepper, to_device
from rollcall.train.strategies import Strategy, bare, repoint, wrap
from rollcall.world import World

Metrics = dict[str, float]


class Trainer:
    """Trains `model` so that `loss(model(inputs), targets)`, a mean over the batch, gets smaller.

    For batches of another form override `compute_loss`. With `snapshots`, a folder, the training goes on from the
    newest snapshot in it whenever it is started again, on as many ranks as there are then.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        loss: Callable[..., torch.Tensor],
        world: World,
        *,
        strategy: Strategy = "ddp",
        accumulate: int = 1,
        clip_norm: float | None = None,
        precision: Precision = "fp32",
        compile: bool | str = False,
        scheduler: Any = None,
        schedule_every: str = "epoch",
        snapshots: str | Path | None = None,
        save_every: str | int = "1 epoch",
        keep: int = 3,
        early_stop: EarlyStop | None = None,
        evaluate: Callable[["Trainer"], Mapping[str, float]] | None = None,
        on_epoch_end: Callable[["Trainer", Metrics], None] | None = None,
        log: Callable[[Metrics], None] | None = None,
        log_every: int | None = None,
        extra: Mapping[str, Stateful] | None = None,
        progress: bool = True,
    ) -> None:
        refuse_together(world, _what_is_wrong(accumulate, schedule_every, clip_norm, log_every))
        before = dict(model.named_parameters())
        refuse_together(world, _what_is_not_of(model, optimizer))
        self.world, self.loss, self.optimizer = world, loss, optimizer
        self.model = wrap(model, world, strategy, compile=compile)
        repoint(optimizer, before, bare(self.model))
        self.epoch, self.step = 0, 0  # epochs and steps done
        self.snapshot: Snapshot | None = None
        self._stepper = Stepper(self.model, optimizer, self.compute_loss, world, clip_norm, precision)
        self._accumulate = accumulate
        self._scheduler, self._schedule_every = scheduler, schedule_every
        self._folder, self._pace, self._keep = Path(snapshots) if snapshots else None, Pace.of(save_every), keep
        self._early_stop, self._evaluate, self._on_epoch_end = early_stop, evaluate, on_epoch_end
        self._log, self._log_every = log, log_every
        self._extra = dict(extra or {})
        self._bar = Bar(progress and world.is_first)
        self._watch = Watch(world, self._bar)
        self._journal: Journal | None = None

    def compute_loss(self, batch: Any) -> torch.Tensor:
        """The mean loss of a batch of the form (inputs, targets)."""
        if not (isinstance(batch, list | tuple) and len(batch) == 2):
            self._stepper.refuse(
                f"a batch {_form_of(batch)}: expected (inputs, targets), or a compute_loss of your own"
            )
        inputs, targets = batch
        return self.loss(self.model(inputs), targets)

    def fit(self, loader: Any, epochs: int) -> Metrics:
        """Train until so many epochs are done, those before an interruption included; the last epoch's metrics."""
        refuse_together(self.world, f"epochs is {epochs}: expected 1 or more" if epochs < 1 else None)
        batches = adopt(loader, self.world)
        self._open(batches)
        metrics: Metrics = {}
        with self._watch:
            while self.epoch < epochs and not (self._early_stop and self._early_stop.is_over):
                self._train_epoch(batches, epochs)
                metrics = self._end_epoch(batches)
        self._close()
        return metrics

    def evaluate(self, loader: Any, prefix: str = "val_", **measures: Callable[..., torch.Tensor]) -> Metrics:
        """The mean loss over a loader's samples, and the means of `measures(outputs, targets)`."""
        return measure(self, loader, prefix, measures)

    def autocast(self) -> Any:
        """The precision that the training has, for code of your own."""
        return self._stepper.autocast()

    def _open(self, batches: Loader | ForeignLoader) -> None:
        """Continue from a snapshot, if there is one."""
        if self._folder is None or self.snapshot is not None:
            return
        named = {"watch": self._watch, "early_stop": self._early_stop, **self._extra}
        self.snapshot = Snapshot(
            self._folder,
            self.world,
            self.model,
            self.optimizer,
            scheduler=self._scheduler,
            scaler=self._stepper.scaler,
            loader=batches,
            extra={name: each for name, each in named.items() if each is not None},
            keep=self._keep,
        )
        self._watch.snapshot = self.snapshot
        progress = self.snapshot.load(prepare=lambda: self._settle_buckets(batches))
        self.epoch, self.step = progress.epoch, progress.step
        if self.world.is_first:
            self._journal = Journal(self._folder / NAME, progress.step, progress.epoch)

    def _settle_buckets(self, batches: Loader | ForeignLoader) -> None:
        """DDP lays out its buckets anew after the first backward pass, and with them the order in which gloo adds up.

        Behind its first step a resumed training would add in another order than the one that was not interrupted;
        so it makes that pass before its state is put in place.
        """
        if isinstance(self.model, DistributedDataParallel) and self.world.size > 2:
            self._stepper.run_backward([(to_device(next(iter(batches)), self.world.device), Share(1, 0))])
            self.optimizer.zero_grad(set_to_none=True)

    def _train_epoch(self, batches: Loader | ForeignLoader, epochs: int) -> None:
        batches.set_epoch(self.epoch)
        self.model.train()
        meter = self._watch.meter
        for group in self._groups(batches):
            losses = self._stepper.step(group)
            self.step += 1
            for loss, (_, share) in zip(losses, group, strict=True):
                meter.add(loss, share.mine, self.step)
            if self._scheduler is not None and self._schedule_every == "step":
                self._scheduler.step()
            self._look(batches, epochs)

    def _groups(self, batches: Loader | ForeignLoader) -> Iterator[Batches]:
        """The batches of one step after the other."""
        device = self.world.device
        each = ((batch, batches.share) for batch in batches)
        if device.type != "cpu":
            each = ((to_device(batch, device), share) for batch, share in each)
        if self._accumulate == 1:
            return ([one] for one in each)
        return iter(lambda: list(itertools.islice(each, self._accumulate)), [])

    def _look(self, batches: Loader | ForeignLoader, epochs: int) -> None:
        """After a step: most of the time there is nothing to see."""
        saves = self._pace.is_at_step(self.step)
        logs = self._log_every is not None and self.step % self._log_every == 0
        if not (self._watch.pulse.is_due() or saves or logs):
            return
        asked = self._watch.look(self.step, self.epoch, self._pace.is_after(self._watch.saved_s), saves or logs)
        if saves or asked:
            self._watch.save(self.step, self.epoch)
        if logs:
            self._record("step", {"loss": self._watch.meter.mean})
        self._bar.show(self.epoch, epochs, batches.samples, batches.samples_per_epoch, self._watch.meter.mean)

    def _end_epoch(self, batches: Loader | ForeignLoader) -> Metrics:
        watch = self._watch
        asked = watch.look(self.step, self.epoch, self._pace.is_after(watch.saved_s), True)
        metrics: Metrics = {"loss": watch.meter.mean, "samples": watch.meter.total_samples, **watch.speed()}
        if self._evaluate is not None:
            metrics |= self._evaluate(self)
        if self._scheduler is not None and self._schedule_every == "epoch":
            self._scheduler.step()
        if self._early_stop is not None:
            # Rank 0 decides: metrics of the program's own may differ between ranks.
            self._early_stop.load_state_dict(tell(self.world, self._early_stop.after(metrics)))
        self._bar.clear()
        self._record("epoch", metrics)
        if self._on_epoch_end is not None:
            self._on_epoch_end(self, metrics)
        self.epoch += 1
        watch.begin_epoch()
        if asked or self._pace.is_at_end_of(self.epoch - 1):
            watch.save(self.step, self.epoch)
        return metrics

    def _record(self, event: str, metrics: Mapping[str, float]) -> None:
        if not self.world.is_first:
            return
        lr = self.optimizer.param_groups[0]["lr"]
        record = {"event": event, "epoch": self.epoch, "step": self.step, **metrics, "lr": float(lr)}
        if self._journal is not None:
            self._journal.write(record)
        if self._log is not None:
            self._log(record)  # type: ignore[arg-type]

    def _close(self) -> None:
        if self.snapshot is not None:
            if self.step:
                self._watch.save(self.step, self.epoch)
            self.snapshot.wait()


def _what_is_wrong(accumulate: int, schedule_every: str, clip_norm: float | None, log_every: int | None) -> str | None:
    if accumulate < 1:
        return f"accumulate is {accumulate}: expected 1 or more batches for a step"
    if schedule_every not in ("step", "epoch"):
        return f"schedule_every is {schedule_every!r}: use 'step' or 'epoch'"
    if clip_norm is not None and not (clip_norm > 0 and math.isfinite(clip_norm)):
        return f"clip_norm is {clip_norm}: expected a number above 0"
    if log_every is not None and log_every < 1:
        return f"log_every is {log_every}: expected 1 or more steps"
    return None


def _what_is_not_of(model: nn.Module, optimizer: Optimizer) -> str | None:
    """An optimizer that was made of another model, or before this one was copied, would train nothing."""
    known = {id(parameter) for parameter in model.parameters()}
    given = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    strange = sum(id(parameter) not in known for parameter in given)
    if not strange or not known:
        return None
    return f"the optimizer has {strange} parameters that are not the model's: make it of model.parameters()"


def _form_of(batch: Any) -> str:
    return f"has {len(batch)} parts" if isinstance(batch, list | tuple) else f"is a {type(batch).__name__}"
