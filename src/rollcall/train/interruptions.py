"""What may happen to a training at any step, and what is done about it: told to end, gone wrong, time to save."""

import signal
import time
from types import TracebackType
from typing import NoReturn, Self

from rollcall.errors import RankError
from rollcall.protocol.rank_ranges import list_of
from rollcall.train.checkpoint.snapshot import Snapshot
from rollcall.train.consensus import raise_together
from rollcall.train.meter import Meter
from rollcall.train.progress_bar import Bar
from rollcall.train.rank_sync import Beat, Notice, Pulse
from rollcall.world import World


class Watch:
    """The eyes and ears of a Trainer, on all ranks alike."""

    def __init__(self, world: World, bar: Bar) -> None:
        self.meter, self.pulse = Meter(lags=world.device.type == "cuda"), Pulse(world)
        self.snapshot: Snapshot | None = None
        self.saved_s = time.monotonic()
        self._world, self._bar, self._notice = world, bar, Notice()
        self._epoch_s, self._epoch_samples = time.monotonic(), 0

    def __enter__(self) -> Self:
        self._notice.__enter__()
        self._epoch_s, self._epoch_samples = time.monotonic(), self.meter.total_samples
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._notice.__exit__(kind, error, where)

    def look(self, step: int, epoch: int, wants_save: bool, everything: bool) -> bool:
        """Hear from all ranks. Ends the training if one has to; whether one wants to save.

        `everything`: of the steps up to this one. Otherwise a GPU may still be at work on the last of them.
        """
        beats = self._hear(epoch, wants_save, everything)
        asked, stops = any(beat.wants_save for beat in beats), [beat.stop for beat in beats if beat.stop]
        if (asked or stops) and self.meter.lags and not everything:
            self._hear(epoch, wants_save, True)  # what is saved must be known to be good
        if stops:
            self._end(signal.Signals(stops[0]), step, epoch)
        return asked

    def save(self, step: int, epoch: int, wait: bool = False) -> None:
        if self.snapshot is not None:
            self.snapshot.save(step, epoch, wait=wait)
            self.saved_s = time.monotonic()

    def begin_epoch(self) -> None:
        self.meter.reset()
        self._epoch_s, self._epoch_samples = time.monotonic(), 0

    def speed(self) -> dict[str, float]:
        """Of this epoch, as far as this process has seen it."""
        took_s = time.monotonic() - self._epoch_s
        return {"seconds": took_s, "samples_per_s": (self.meter.total_samples - self._epoch_samples) / took_s}

    def state_dict(self) -> dict[str, int]:
        return self.meter.state_dict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.meter.load_state_dict(state)

    def _hear(self, epoch: int, wants_save: bool, everything: bool) -> list[Beat]:
        units, samples, bad_step = self.meter.take(everything)
        mine = Beat(self._notice.signal, bad_step, int(wants_save), self.pulse.took_us(), units, samples)
        beats = self.pulse.exchange(mine)
        self.meter.settle(sum(beat.loss_units for beat in beats), sum(beat.samples for beat in beats))
        if any(beat.bad_step >= 0 for beat in beats):
            self._give_up(beats, epoch)
        return beats

    def _give_up(self, beats: list[Beat], epoch: int) -> NoReturn:
        """What a snapshot holds is from before: the step that went wrong is never saved."""
        step = min(beat.bad_step for beat in beats if beat.bad_step >= 0)
        ranks = [rank for rank, beat in enumerate(beats) if beat.bad_step == step]
        self._bar.clear()
        raise_together(
            self._world,
            f"the loss is not finite on rank{'s' * (len(ranks) > 1)} {list_of(ranks)} at step {step} (epoch {epoch}): "
            f"training has stopped; {self._what_is_saved()}; try a lower learning rate, or clip_norm",
            RankError,
        )

    def _end(self, number: signal.Signals, step: int, epoch: int) -> NoReturn:
        """Preempted: save, and leave. Whoever starts us again finds the snapshot."""
        self.save(step, epoch, wait=True)
        self._bar.clear()
        if self._world.is_first:
            self._world.logger.warning("%s at step %d: %s", number.name, step, self._what_is_saved())
        raise SystemExit(128 + number)

    def _what_is_saved(self) -> str:
        if self.snapshot is None:
            return "no snapshots were asked for"
        self.snapshot.wait()
        step = self.snapshot.newest
        return "there is no snapshot" if step is None else f"the newest snapshot is that of step {step}"
