"""Writes a snapshot on all ranks together, completely or not at all. Runs in a thread beside the training."""

from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from rollcall.train.checkpoint import storage
from rollcall.train.checkpoint.directory import SnapshotDirectory
from rollcall.train.checkpoint.manifest import Checksum, Manifest, compute_checksum
from rollcall.train.checkpoint.staging import StagedState
from rollcall.train.consensus import broadcast, gather
from rollcall.train.weights.parts import local_part
from rollcall.world import World


def write(
    staged: StagedState,
    manifest: Manifest,
    directory: SnapshotDirectory,
    world: World,
    group: dist.ProcessGroup | None,
    verify: bool = False,
) -> str | None:
    """Write this rank's part; rank 0 then publishes the snapshot. Returns what went wrong, the same on all ranks.

    The group is only for writing: its collectives must not mix with those of the training.
    """
    values = staged.finish()
    if problem := _first(gather(world, _find_problem(staged), group)):
        return problem
    draft = directory.draft_path(manifest.step)
    try:
        checksums = storage.write(values, draft, group, storage.threads_of(world))
    except CheckpointException as error:  # torch gives every rank the errors of all ranks
        rank = min(error.failures)
        return f"{_describe(error.failures[rank][0])} on rank {rank}"
    except OSError as error:
        return _describe(error)
    if verify and (problem := _first(gather(world, _find_difference(values, draft), group))):
        return problem
    written = gather(world, (checksums, _find_short_file(checksums, draft)), group)
    problem = _first([problem for _, problem in written])
    if problem is None and world.is_first:
        files = {name: checksum for checksums, _ in written for name, checksum in checksums.items()}
        problem = _publish(directory, manifest, files)
    return broadcast(world, problem, group)


def _find_problem(staged: StagedState) -> str | None:
    if name := staged.changed:
        return f"{name} was changed while it was copied, not by the optimizer: save with wait=True"
    if name := staged.find_non_finite():
        return f"{name} is not finite"
    return None


def _find_difference(values: storage.Values, draft: Path) -> str | None:
    """Read this rank's tensors back, one after the other, and compare them with what was to be written."""
    for name, value in values.items():
        if isinstance(value, torch.Tensor):
            found = torch.empty_like(value)
            storage.read({name: found}, draft)
            if not torch.equal(_bytes_of(found), _bytes_of(value)):
                return f"{name} is not on the disk as it was written"
    return None


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Compared as bytes: a NaN does not equal itself."""
    return local_part(tensor).contiguous().flatten().view(torch.uint8)


def _find_short_file(checksums: Mapping[str, Checksum], draft: Path) -> str | None:
    """The checksums are those of what was to be written. A file of another size is not worth keeping."""
    try:
        sizes = {name: (draft / name).stat().st_size for name in checksums}
    except OSError as error:
        return _describe(error)
    short = (name for name, size in sizes.items() if size != checksums[name].size_bytes)
    return next((f"{name} has {sizes[name]:,} bytes, expected {checksums[name].size_bytes:,}" for name in short), None)


def _publish(directory: SnapshotDirectory, manifest: Manifest, files: dict[str, Checksum]) -> str | None:
    try:
        files[storage.METADATA] = compute_checksum(directory.draft_path(manifest.step) / storage.METADATA)
        directory.publish(manifest.model_copy(update={"files": files}))
    except OSError as error:
        return _describe(error)
    return None


def _first(problems: list[str | None]) -> str | None:
    return next((problem for problem in problems if problem), None)


def _describe(error: BaseException) -> str:
    """Uses the operating system's own words for its errors, such as `No space left on device`."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
