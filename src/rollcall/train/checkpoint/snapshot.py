"""`Snapshot`: the state of a training in a folder, written beside the training, read back on any number of ranks."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from rollcall.errors import RankError, UsageError
from rollcall.train.checkpoint.compatibility import what_does_not_fit
from rollcall.train.checkpoint.directory import Shelf
from rollcall.train.checkpoint.manifest import Manifest
from rollcall.train.checkpoint.select import check_shared, choose
from rollcall.train.checkpoint.staging import Draft, Staging
from rollcall.train.checkpoint.state import Parts, Stateful, load_state, read_state
from rollcall.train.checkpoint.writing import Desk, write
from rollcall.train.consensus import refuse_together
from rollcall.world import World


@dataclass(frozen=True)
class Progress:
    """How far a training has come: the epoch it is in, and the steps it has done. The loader knows where in it."""

    epoch: int = 0
    step: int = 0


class Snapshot:
    """Saves and loads everything that a training consists of.

    `scheduler`, `scaler`, `loader` and what `extra` names are anything with `state_dict` and `load_state_dict`. All
    methods are called by all ranks. The folder must be one that all hosts share.
    """

    def __init__(
        self,
        folder: str | Path,
        world: World,
        model: nn.Module,
        optimizer: Optimizer | None = None,
        *,
        scheduler: Stateful | None = None,
        scaler: Stateful | None = None,
        loader: Stateful | None = None,
        extra: Mapping[str, Stateful] | None = None,
        keep: int = 3,
    ) -> None:
        if keep < 1:
            raise UsageError(f"keep is {keep}: expected at least 1 snapshot to keep")
        named = {"scheduler": scheduler, "scaler": scaler, "loader": loader, **(extra or {})}
        self._parts = Parts(model, optimizer, {name: each for name, each in named.items() if each is not None})
        self._world = world
        self._shelf = Shelf(Path(folder), keep)
        self._staging = Staging(world.device)
        self._group: dist.ProcessGroup | None = None
        self._writer: threading.Thread | None = None
        self._lost: RuntimeError | None = None
        self._hook = optimizer.register_step_pre_hook(self._staging.wait) if optimizer is not None else None
        self._newest: Progress | None = None  # of the whole snapshots that we know of
        check_shared(self._shelf, world)
        if world.is_first:
            self._shelf.clear()

    @property
    def folder(self) -> Path:
        return self._shelf.folder

    @property
    def newest(self) -> int | None:
        """The step of the newest snapshot that is whole."""
        return None if self._newest is None else self._newest.step

    @property
    def waited_s(self) -> float:
        """Seconds for which the optimizer has waited for copies, in all."""
        return self._staging.waited_s

    def load(self, prepare: Callable[[], None] | None = None) -> Progress:
        """Continue from the newest snapshot that is whole; from the start, if there is none.

        `prepare` is called in between: there is a snapshot, and its state is about to be put in place.
        """
        facts = choose(self._shelf, self._world)
        if facts is None:
            return Progress()
        folder = self._shelf.place_of(facts.step)
        refuse_together(self._world, what_does_not_fit(self._parts, facts, folder))
        if prepare is not None:
            prepare()
        load_state(self._parts, self._world, folder, facts.step)
        self._newest = Progress(facts.epoch, facts.step)
        if self._world.is_first:
            ranks = "" if facts.world_size == self._world.size else f", taken on {facts.world_size} ranks"
            self._world.logger.info("continuing from %s (epoch %d%s)", folder, facts.epoch, ranks)
        return self._newest

    def save(self, step: int, epoch: int = 0, *, wait: bool = False) -> None:
        """Take a snapshot, and write it in the background once the one before is written.

        The optimizer's next step waits until it is copied. `wait`: come back when it is on the disk.
        """
        self.wait()
        if self._newest == Progress(epoch, step):
            return
        if self._group is None and self._world.size > 1:
            self._group = dist.new_group(backend="gloo")
        facts = Manifest(
            step=step,
            epoch=epoch,
            world_size=self._world.size,
            optimizer=type(self._parts.optimizer).__name__ if self._parts.optimizer is not None else None,
            torch=torch.__version__,
            files={},
        )
        draft = self._staging.begin(read_state(self._parts, self._world))
        # A daemon: when another rank dies while the writers wait for it, this process must be able to end.
        self._writer = threading.Thread(target=self._write, args=(draft, facts), name="snapshot", daemon=True)
        self._writer.start()
        if wait:
            self.wait()

    def wait(self) -> None:
        """Until what was saved is on the disk, or it was said why not."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        if self._lost is not None:
            raise RankError(f"another rank is gone, the snapshot is not written ({self._lost})") from self._lost

    def close(self) -> None:
        self.wait()
        if self._hook is not None:
            self._hook.remove()
        if self._group is not None:
            dist.destroy_process_group(self._group)
            self._group = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()

    def _write(self, draft: Draft, facts: Manifest) -> None:
        try:
            problem = write(draft, facts, Desk(self._shelf, self._world, self._group))
        except RuntimeError as error:  # the connection to another rank broke
            self._lost = error
            return
        if problem is None:
            self._newest = Progress(facts.epoch, facts.step)
            return
        if self._world.is_first:
            self._shelf.drop_draft(facts.step)
            kept = f"the newest is that of step {self.newest}" if self.newest is not None else "there is none yet"
            self._world.logger.warning(
                "the snapshot of step %d was not written (%s): training goes on; %s", facts.step, problem, kept
            )
