"""The folder of snapshots: which there are, how one comes in whole or not at all, and how old ones go."""

import contextlib
import os
import re
import shutil
import uuid
from pathlib import Path

from rollcall.train.checkpoint import manifest
from rollcall.train.checkpoint.manifest import Manifest

_WHOLE = re.compile(r"step-(\d+)")
_UNFINISHED = re.compile(r"\.step-\d+\.(writing|removing)|\.mark-\w+")


class Shelf:
    """`step-00000120` is a snapshot; what begins with a dot is on its way in or out."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder, self._keep = folder, keep

    def place_of(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"

    def draft_of(self, step: int) -> Path:
        """Where a snapshot is written before it has its name."""
        return self.folder / f".step-{step:08d}.writing"

    def steps(self) -> list[int]:
        """Those that there are, the newest first; whether they are whole, `manifest` knows."""
        if not self.folder.is_dir():
            return []
        found = [_WHOLE.fullmatch(path.name) for path in self.folder.iterdir() if path.is_dir()]
        return sorted((int(match[1]) for match in found if match), reverse=True)

    def why_not_writable(self) -> str | None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / self.leave_mark()).unlink()
        except OSError as error:
            return (
                f"the snapshot folder {self.folder} is not writable ({error.strerror}): "
                "choose another, or change its permissions"
            )
        return None

    def leave_mark(self) -> str:
        """A file by which others can tell that this is the same folder: its name."""
        mark = self.folder / f".mark-{uuid.uuid4().hex}"
        mark.touch(exist_ok=False)
        return mark.name

    def clear(self) -> None:
        """Remove what an interrupted save or removal has left."""
        for path in self.folder.iterdir():
            if _UNFINISHED.fullmatch(path.name) and path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif _UNFINISHED.fullmatch(path.name):
                path.unlink(missing_ok=True)

    def put(self, step: int, facts: Manifest) -> None:
        """Give a written draft its manifest, then its name. Until the last rename, nothing has changed."""
        draft, place = self.draft_of(step), self.place_of(step)
        with open(draft / manifest.NAME, "w") as file:
            file.write(facts.model_dump_json(indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
        _sync_folder(draft)
        away = place.with_name(f".{place.name}.removing")
        if place.exists():  # a damaged one, or one of the same step that was in mid-epoch
            shutil.rmtree(away, ignore_errors=True)
            os.rename(place, away)
        os.rename(draft, place)
        _sync_folder(self.folder)
        shutil.rmtree(away, ignore_errors=True)
        for old in self.steps()[self._keep :]:
            self._remove(self.place_of(old))

    def drop_draft(self, step: int) -> None:
        shutil.rmtree(self.draft_of(step), ignore_errors=True)

    def _remove(self, place: Path) -> None:
        # By another name first: half of a snapshot must never be seen under its own.
        away = place.with_name(f".{place.name}.removing")
        shutil.rmtree(away, ignore_errors=True)
        with contextlib.suppress(OSError):  # a folder that can no longer be written to keeps its old ones
            os.rename(place, away)
            shutil.rmtree(away, ignore_errors=True)


def _sync_folder(folder: Path) -> None:
    """A rename is on the disk only when its folder is."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
