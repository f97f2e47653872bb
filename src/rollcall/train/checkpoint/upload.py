"""Copies snapshots to another folder, such as a mounted bucket, beside the training.

The manifest is copied last, after the other files were read back and compared with it: a snapshot without a manifest
counts as damaged. Nothing is renamed there, because a bucket cannot rename a folder at once.
"""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

from rollcall.train.checkpoint.directory import SnapshotDirectory
from rollcall.train.checkpoint.manifest import FILE_NAME, find_damage, read_manifest


class Uploader:
    """Copies one snapshot at a time in a thread. If it is too slow, it leaves out all but the newest."""

    def __init__(self, source: SnapshotDirectory, target: SnapshotDirectory, warn: Callable[[str], None]) -> None:
        self._source, self._target, self._warn = source, target, warn
        self._next: int | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def start(self, step: int) -> None:
        with self._lock:
            self._next = step
            self._source.held = self._source.held | {step}
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="upload", daemon=True)
                self._thread.start()

    def wait(self) -> None:
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while (step := self._take()) is not None:
            if problem := copy(self._source.path_of(step), self._target.path_of(step)):
                self._warn(f"the snapshot of step {step} was not copied to {self._target.folder} ({problem})")
            else:
                self._target.remove_old()

    def _take(self) -> int | None:
        """The newest snapshot to copy. It is held: it is not removed while it is copied."""
        with self._lock:
            step, self._next = self._next, None
            self._source.held = set() if step is None else {step}
            if step is None:
                self._thread = None
            return step


def copy(source: Path, target: Path) -> str | None:
    """Copy a snapshot, and read it back. Returns what went wrong."""
    try:
        manifest = read_manifest(source)
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for name, checksum in manifest.files.items():
            shutil.copyfile(source / name, target / name)
            if damage := find_damage(target, name, checksum):
                return damage
        shutil.copyfile(source / FILE_NAME, target / FILE_NAME)
    except OSError as error:
        return error.strerror or str(error)
    except ValueError as error:
        return str(error)
    return None
