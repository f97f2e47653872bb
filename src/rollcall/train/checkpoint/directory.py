"""The folder of snapshots: lists them, publishes new ones atomically, removes old ones."""

import contextlib
import os
import re
import shutil
import uuid
from pathlib import Path

from rollcall.train.checkpoint.manifest import FILE_NAME, Manifest, read_manifest

_SNAPSHOT = re.compile(r"step-(\d+)")
_UNFINISHED = re.compile(r"\.step-\d+\.(writing|removing)|\.mark-\w+")


class SnapshotDirectory:
    """`step-00000120` is a snapshot. Names that begin with a dot are being written or removed."""

    def __init__(self, folder: Path, keep: int, keep_every: int | None = None) -> None:
        self.folder, self._keep, self._keep_every = folder, keep, keep_every
        self.held: set[int] = set()  # steps of snapshots that are being copied

    def path_of(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"

    def draft_path(self, step: int) -> Path:
        """Where a snapshot is written before it is published."""
        return self.folder / f".step-{step:08d}.writing"

    def steps(self) -> list[int]:
        """The steps of all snapshots, the newest first. Some may be damaged."""
        if not self.folder.is_dir():
            return []
        found = [_SNAPSHOT.fullmatch(path.name) for path in self.folder.iterdir() if path.is_dir()]
        return sorted((int(match[1]) for match in found if match), reverse=True)

    def find_write_problem(self) -> str | None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.create_marker().unlink()
        except OSError as error:
            return (
                f"the snapshot folder {self.folder} is not writable ({error.strerror}): "
                "choose another, or change its permissions"
            )
        return None

    def create_marker(self) -> Path:
        """An empty file, by which other ranks can tell whether they see the same folder."""
        marker = self.folder / f".mark-{uuid.uuid4().hex}"
        marker.touch(exist_ok=False)
        return marker

    def remove_unfinished(self) -> None:
        """Remove what an interrupted save or removal has left."""
        for path in self.folder.iterdir():
            if _UNFINISHED.fullmatch(path.name) and path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif _UNFINISHED.fullmatch(path.name):
                path.unlink(missing_ok=True)

    def publish(self, manifest: Manifest) -> None:
        """Write the manifest into the draft and rename the draft. Until that rename, the snapshots are unchanged."""
        draft, path = self.draft_path(manifest.step), self.path_of(manifest.step)
        manifest = manifest.model_copy(update={"number": self._next_number(manifest.step)})
        with open(draft / FILE_NAME, "w") as file:
            file.write(manifest.model_dump_json(indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
        _sync_folder(draft)
        # There may be a damaged one, or one that was taken at the same step before the end of the epoch.
        replaced = _hide(path) if path.exists() else None
        os.rename(draft, path)
        _sync_folder(self.folder)
        if replaced is not None:
            shutil.rmtree(replaced, ignore_errors=True)
        self.remove_old()

    def remove_draft(self, step: int) -> None:
        shutil.rmtree(self.draft_path(step), ignore_errors=True)

    def remove_old(self) -> None:
        """Keep the newest ones, and every k-th of all."""
        for step in self.steps()[self._keep :]:
            if step in self.held or self._is_kth(step):
                continue
            with contextlib.suppress(OSError):  # the folder is no longer writable: old snapshots stay
                shutil.rmtree(_hide(self.path_of(step)), ignore_errors=True)

    def _is_kth(self, step: int) -> bool:
        number = self._number_of(step) if self._keep_every else 0
        return bool(self._keep_every and number and number % self._keep_every == 0)

    def _next_number(self, step: int) -> int:
        return 1 + max((self._number_of(each) for each in self.steps() if each < step), default=0)

    def _number_of(self, step: int) -> int:
        """0 if it cannot be read, or was saved before snapshots had numbers."""
        try:
            return read_manifest(self.path_of(step)).number
        except ValueError:
            return 0


def _hide(path: Path) -> Path:
    """Rename a snapshot before it is removed: a half removed one must not be seen under its own name."""
    hidden = path.with_name(f".{path.name}.removing")
    shutil.rmtree(hidden, ignore_errors=True)
    os.rename(path, hidden)
    return hidden


def _sync_folder(folder: Path) -> None:
    """A rename is on the disk only after its folder is synced."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
