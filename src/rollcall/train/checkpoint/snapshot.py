"""`Snapshot`: saves the state of a training to a folder while it runs, and loads it on any number of ranks."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
import torch.distributed as dist
from torch import nn

from rollcall.errors import RankError, UsageError
from rollcall.train.checkpoint.compatibility import find_mismatch
from rollcall.train.checkpoint.directory import SnapshotDirectory
from rollcall.train.checkpoint.manifest import Manifest
from rollcall.train.checkpoint.select import check_shared, select_newest
from rollcall.train.checkpoint.staging import StagedState, StagingBuffers
from rollcall.train.checkpoint.state import Stateful, TrainingParts, load_state, read_state
from rollcall.train.checkpoint.upload import Uploader
from rollcall.train.checkpoint.writing import write
from rollcall.train.consensus import fail_if_any
from rollcall.train.optimizers import Optimizers, as_tuple, class_names
from rollcall.world import World


@dataclass(frozen=True)
class Progress:
    """The epoch that a training is in, and the steps it has done. The loader has the position in the epoch."""

    epoch: int = 0
    step: int = 0


class Snapshot:
    """Saves and loads the whole state of a training.

    `scheduler`, `scaler`, `loader` and the values of `extra` are anything with `state_dict` and `load_state_dict`. All
    ranks must call each method. All hosts must share the folder.
    """

    def __init__(
        self,
        folder: str | Path,
        world: World,
        model: nn.Module,
        optimizer: Optimizers | None = None,
        *,
        scheduler: Stateful | None = None,
        scaler: Stateful | None = None,
        loader: Stateful | None = None,
        extra: Mapping[str, Stateful] | None = None,
        tensors: Mapping[str, torch.Tensor] | None = None,
        keep: int = 3,
        keep_every: int | None = None,
        upload: str | Path | None = None,
        verify: bool = False,
    ) -> None:
        if keep < 1:
            raise UsageError(f"keep is {keep}: expected at least 1 snapshot to keep")
        if keep_every is not None and keep_every < 1:
            raise UsageError(f"keep_every is {keep_every}: expected 1 or more, such as 10 for every tenth snapshot")
        named = {"scheduler": scheduler, "scaler": scaler, "loader": loader, **(extra or {})}
        optimizers = as_tuple(optimizer)
        others = {name: each for name, each in named.items() if each is not None}
        self._parts = TrainingParts(model, optimizers, others, tensors or {})
        self._world = world
        self._directory = SnapshotDirectory(Path(folder), keep, keep_every)
        self._verify = verify
        self._uploader: Uploader | None = None
        self.has_loaded_tensors = False
        self._staging = StagingBuffers(world.device)
        self._group: dist.ProcessGroup | None = None
        self._writer: threading.Thread | None = None
        self._connection_error: RuntimeError | None = None
        self._hooks = [each.register_step_pre_hook(self._staging.wait) for each in optimizers]
        self._newest: Progress | None = None
        check_shared(self._directory, world)
        if world.is_first:
            self._directory.remove_unfinished()
        if upload is not None:
            self._start_uploads(SnapshotDirectory(Path(upload), keep, keep_every))

    def _start_uploads(self, target: SnapshotDirectory) -> None:
        """Rank 0 copies for all."""
        fail_if_any(self._world, target.find_write_problem() if self._world.is_first else None)
        if self._world.is_first:
            self._uploader = Uploader(self._directory, target, self._world.logger.warning)

    @property
    def folder(self) -> Path:
        return self._directory.folder

    @property
    def newest(self) -> int | None:
        """The step of the newest complete snapshot."""
        return None if self._newest is None else self._newest.step

    @property
    def newest_in_words(self) -> str:
        return "there is no snapshot" if self.newest is None else f"the newest snapshot is that of step {self.newest}"

    @property
    def waited_s(self) -> float:
        """Seconds for which the optimizer has waited for copies, in total."""
        return self._staging.waited_s

    def load(self, prepare: Callable[[], None] | None = None) -> Progress:
        """Load the newest snapshot that is not damaged. If there is none, nothing changes.

        `prepare` is called before the state is loaded, if there is a snapshot.
        """
        manifest = select_newest(self._directory, self._world)
        if manifest is None:
            return Progress()
        folder = self._directory.path_of(manifest.step)
        fail_if_any(self._world, find_mismatch(self._parts, manifest, folder))
        if prepare is not None:
            prepare()
        self.has_loaded_tensors = load_state(self._parts, self._world, folder, manifest.step)
        self._newest = Progress(manifest.epoch, manifest.step)
        if self._world.is_first:
            ranks = "" if manifest.world_size == self._world.size else f", taken on {manifest.world_size} ranks"
            self._world.logger.info("continuing from %s (epoch %d%s)", folder, manifest.epoch, ranks)
        return self._newest

    def save(self, step: int, epoch: int = 0, *, wait: bool = False) -> None:
        """Take a snapshot, and write it in the background. Waits first until the one before is written.

        The optimizer's next step waits until the state is copied. `wait`: return when the snapshot is on the disk.
        """
        self.wait()
        if self._newest == Progress(epoch, step):
            return
        if self._group is None and self._world.size > 1:
            self._group = dist.new_group(backend="gloo")
        manifest = Manifest(
            step=step,
            epoch=epoch,
            world_size=self._world.size,
            optimizer=class_names(self._parts.optimizers),
            torch=torch.__version__,
            files={},
        )
        staged = self._staging.begin(read_state(self._parts, self._world))
        # A daemon: if another rank dies while this thread waits for it, this process must still be able to end.
        self._writer = threading.Thread(target=self._write, args=(staged, manifest), name="snapshot", daemon=True)
        self._writer.start()
        if wait:
            self.wait()

    def wait(self) -> None:
        """Wait until the last snapshot is on the disk, or a warning says why it is not."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        if (error := self._connection_error) is not None:
            raise RankError(f"the connection to another rank is lost, the snapshot is not written ({error})") from error

    def wait_for_copy(self) -> None:
        """Wait until the state is copied: then the weights may be changed by other means than the optimizer."""
        self._staging.wait()

    def close(self) -> None:
        self.wait()
        for hook in self._hooks:
            hook.remove()
        if self._group is not None:
            dist.destroy_process_group(self._group)
            self._group = None
        self.wait_for_upload()

    def wait_for_upload(self) -> None:
        """Wait until the newest snapshot is copied, or a warning says why it is not."""
        if self._uploader is not None:
            self._uploader.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()

    def _write(self, staged: StagedState, manifest: Manifest) -> None:
        try:
            problem = write(staged, manifest, self._directory, self._world, self._group, self._verify)
        except RuntimeError as error:  # the connection to another rank is lost
            self._connection_error = error
            return
        if problem is None:
            self._newest = Progress(manifest.epoch, manifest.step)
            if self._uploader is not None:
                self._uploader.start(manifest.step)
            return
        if self._world.is_first:
            self._directory.remove_draft(manifest.step)
            kept = f"the newest is that of step {self.newest}" if self.newest is not None else "there is none yet"
            self._world.logger.warning(
                "the snapshot of step %d was not written (%s): training continues; %s", manifest.step, problem, kept
            )
