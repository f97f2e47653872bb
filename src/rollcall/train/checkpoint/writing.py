"""Writing a snapshot: beside the training, on all ranks together, whole or not at all."""

from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from rollcall.train.checkpoint import manifest, storage
from rollcall.train.checkpoint.directory import Shelf
from rollcall.train.checkpoint.manifest import File, Manifest
from rollcall.train.checkpoint.staging import Draft
from rollcall.train.consensus import gather, tell
from rollcall.world import World


@dataclass(frozen=True)
class Desk:
    """Where and with whom to write. The group is the writers' own: they must not disturb the ranks' other talk."""

    shelf: Shelf
    world: World
    group: dist.ProcessGroup | None


def write(draft: Draft, facts: Manifest, desk: Desk) -> str | None:
    """Write this rank's part; rank 0 then puts the whole on the shelf. What went wrong, on all ranks, if anything."""
    values = draft.finish()
    unfit = next((words for words in gather(desk.world, _why_unfit(draft), desk.group) if words), None)
    if unfit:
        return unfit
    folder = desk.shelf.draft_of(facts.step)
    try:
        storage.write(values, folder, desk.group)
    except CheckpointException as error:  # torch tells all ranks what went wrong on one
        return f"{_first_cause(error)} on rank {min(error.failures)}"
    except OSError as error:
        return _words(error)
    described = gather(desk.world, _describe(folder, desk.world.rank), desk.group)
    problem = next((each for each in described if isinstance(each, str)), None)
    if problem is None and desk.world.is_first:
        files = {name: file for each in described if isinstance(each, dict) for name, file in each.items()}
        problem = _put(facts.model_copy(update={"files": files}), desk.shelf)
    return tell(desk.world, problem, desk.group)


def _why_unfit(draft: Draft) -> str | None:
    if name := draft.what_is_torn():
        return f"{name} was changed while it was copied, by something else than the optimizer: save with wait=True"
    if name := draft.what_is_not_finite():
        return f"{name} is not finite"
    return None


def _describe(folder: Path, rank: int) -> dict[str, File] | str:
    """Checksums of what this rank wrote, as the disk has it."""
    mine = [*folder.glob(f"__{rank}_*.distcp"), *([folder / storage.METADATA] if rank == 0 else [])]
    try:
        return {path.name: manifest.describe(path) for path in mine}
    except OSError as error:
        return _words(error)


def _put(facts: Manifest, shelf: Shelf) -> str | None:
    try:
        shelf.put(facts.step, facts)
    except OSError as error:
        return _words(error)
    return None


def _first_cause(error: CheckpointException) -> str:
    cause = error.failures[min(error.failures)][0]
    return _words(cause)


def _words(error: BaseException) -> str:
    """`No space left on device`, where the system said so, through whatever it was wrapped in."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
