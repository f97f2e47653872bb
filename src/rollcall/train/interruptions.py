"""What can interrupt a training after any step: SIGTERM, a loss that is not finite, the time to save a snapshot."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from rollcall.errors import RankError
from rollcall.protocol.rank_ranges import ranks_in_words
from rollcall.train.checkpoint.snapshot import Snapshot
from rollcall.train.consensus import fail_on_all
from rollcall.train.rank_sync import RankStatus, RankSync
from rollcall.train.reporting.meter import LossMeter
from rollcall.world import World


class Interruptions:
    """Exchanges with all ranks what has happened, so that all of them react at the same step."""

    def __init__(self, world: World, meter: LossMeter, clear_progress: Callable[[], None]) -> None:
        self.sync = RankSync(world)
        self.snapshot: Snapshot | None = None
        self.last_save_s = time.monotonic()
        self._world, self._meter, self._clear_progress = world, meter, clear_progress
        self._stop_signal = 0
        self._is_asked_to_save = False

    @contextmanager
    def delay_sigterm(self) -> Iterator[None]:
        """Inside, SIGTERM does not end the process; the next `check` saves and ends it. After SIGUSR1 or SIGUSR2, by
        which SLURM announces the end of a job, the next `check` saves, and the training continues."""
        if threading.current_thread() is not threading.main_thread():  # Python allows handlers in no other thread
            yield
            return
        before = {signal.SIGTERM: signal.signal(signal.SIGTERM, self._note_signal)}
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            if signal.getsignal(number) is signal.SIG_DFL:  # else the program has a use of its own for it
                before[number] = signal.signal(number, self._note_warning)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def check(self, step: int, epoch: int, wants_save: bool, complete: bool) -> bool:
        """Whether one of the ranks wants to save. Ends the training if one of them has to end.

        `complete`: wait for the losses of all steps so far. Otherwise a GPU may still be computing the last of them.
        """
        statuses = self._exchange(epoch, wants_save, complete)
        save = any(each.wants_save for each in statuses)
        stop_signal = next((each.stop_signal for each in statuses if each.stop_signal), 0)
        if (save or stop_signal) and self._meter.lags and not complete:
            self._exchange(epoch, wants_save, True)  # only a state whose losses are all finite is saved
        if stop_signal:
            self._save_and_exit(signal.Signals(stop_signal), step, epoch)
        return save

    def save(self, step: int, epoch: int, wait: bool = False) -> None:
        if self.snapshot is not None:
            self.snapshot.save(step, epoch, wait=wait)
            self.last_save_s = time.monotonic()

    def _note_signal(self, number: int, _frame: FrameType | None) -> None:
        self._stop_signal = number

    def _note_warning(self, _number: int, _frame: FrameType | None) -> None:
        self._is_asked_to_save = True

    def _exchange(self, epoch: int, wants_save: bool, complete: bool) -> list[RankStatus]:
        units, samples, bad_step = self._meter.collect(complete)
        wants_save, self._is_asked_to_save = wants_save or self._is_asked_to_save, False
        mine = RankStatus(self._stop_signal, bad_step, int(wants_save), self.sync.elapsed_us(), units, samples)
        statuses = self.sync.exchange(mine)
        self._meter.add_totals(sum(each.loss_units for each in statuses), sum(each.samples for each in statuses))
        if any(each.bad_step >= 0 for each in statuses):
            self._fail(statuses, epoch)
        return statuses

    def _fail(self, statuses: list[RankStatus], epoch: int) -> NoReturn:
        """The loss is not finite. The snapshots are all from before that step."""
        step = min(each.bad_step for each in statuses if each.bad_step >= 0)
        ranks = [rank for rank, each in enumerate(statuses) if each.bad_step == step]
        self._clear_progress()
        fail_on_all(
            self._world,
            f"the loss is not finite on {ranks_in_words(ranks)} at step {step} (epoch {epoch}): "
            f"training has stopped; {self._describe_newest()}; try a lower learning rate, or clip_norm",
            RankError,
        )

    def _save_and_exit(self, number: signal.Signals, step: int, epoch: int) -> NoReturn:
        """The job is preempted: the next start continues from this snapshot."""
        self.save(step, epoch, wait=True)
        self._clear_progress()
        if self._world.is_first:
            self._world.logger.warning("%s at step %d: %s", number.name, step, self._describe_newest())
        raise SystemExit(128 + number)

    def _describe_newest(self) -> str:
        if self.snapshot is None:
            return "this training saves no snapshots"
        self.snapshot.wait()
        return self.snapshot.newest_in_words
