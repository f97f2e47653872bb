"""Selects the snapshot to continue from: the newest one that is not damaged, the same on all ranks."""

import pickle
from pathlib import Path

from rollcall.train.checkpoint import storage
from rollcall.train.checkpoint.directory import SnapshotDirectory
from rollcall.train.checkpoint.manifest import FILE_NAME, Manifest, compute_checksum, find_damage, read_manifest
from rollcall.train.consensus import broadcast, fail_if_any, gather, require_equal
from rollcall.world import World

_REMEDY = "use a folder that all hosts share"


def select_newest(directory: SnapshotDirectory, world: World) -> Manifest | None:
    """Check the snapshots, the newest first. Damaged ones are skipped with a warning."""
    steps = directory.steps()
    require_equal(world, f"the snapshots in {directory.folder}", _list_steps(steps), _REMEDY)
    for step in steps:
        folder = directory.path_of(step)
        manifest, problem = _read_manifest(folder, world)
        if manifest is not None:
            problem = next((each for each in gather(world, _find_damage(manifest, folder, world)) if each), None)
            if problem is None:
                return manifest
        if world.is_first:
            world.logger.warning("%s is skipped: %s", folder, problem)
    return None


def check_shared(directory: SnapshotDirectory, world: World) -> None:
    """End all ranks if one of them cannot write to the folder, or does not see what rank 0 writes there."""
    fail_if_any(world, directory.find_write_problem())
    if world.size == 1:
        return
    marker = directory.create_marker() if world.is_first else None
    name = broadcast(world, marker.name if marker is not None else "")
    is_shared = (directory.folder / name).exists()
    try:
        problem = f"{directory.folder} is not the folder that rank 0 writes to: {_REMEDY}"
        fail_if_any(world, None if is_shared else problem)
    finally:
        if marker is not None:
            marker.unlink()


def _list_steps(steps: list[int]) -> str:
    return f"steps {', '.join(map(str, sorted(steps)))}" if steps else "none"


def _read_manifest(folder: Path, world: World) -> tuple[Manifest | None, str | None]:
    """The manifest if all ranks can read the same one; a problem if none of them can."""
    manifest, problem = None, None
    try:
        manifest = read_manifest(folder)
    except ValueError as error:
        problem = str(error)
    if all(gather(world, problem)):
        return None, problem
    fail_if_any(world, f"{folder}: {problem}, but other ranks can read it: {_REMEDY}" if problem else None)
    require_equal(world, str(folder), f"manifest {compute_checksum(folder / FILE_NAME).sha256[:12]}", _REMEDY)
    return manifest, None


def _find_damage(manifest: Manifest, folder: Path, world: World) -> str | None:
    """Each rank checks some of the files; together they check all."""
    mine = sorted(manifest.files.items())[world.rank :: world.size]
    problems = storage.for_each(lambda each: find_damage(folder, *each), mine, storage.threads_of(world))
    damage = next((problem for problem in problems if problem), None)
    if damage is None and world.is_first:
        try:
            storage.contents(folder)
        except (storage.UnsafeError, OSError, EOFError, pickle.UnpicklingError) as error:
            return f"{storage.METADATA} cannot be read ({error})"
    return damage
