"""Which snapshot to continue from: the newest that is whole, and the same one on all ranks."""

import pickle
from pathlib import Path

from rollcall.train.checkpoint import manifest, storage
from rollcall.train.checkpoint.directory import Shelf
from rollcall.train.checkpoint.manifest import Manifest
from rollcall.train.consensus import compare, gather, refuse_together
from rollcall.world import World

_REMEDY = "use a folder that all hosts share"


def choose(shelf: Shelf, world: World) -> Manifest | None:
    """Look at one after the other, the newest first; what is damaged is left out, and said so."""
    steps = shelf.steps()
    compare(world, f"the snapshots in {shelf.folder}", _name(steps), _REMEDY)
    for step in steps:
        folder = shelf.place_of(step)
        facts, problem = _read(folder)
        problems = gather(world, problem)
        if all(problems):
            _leave_out(world, folder, problem)
            continue
        refuse_together(world, f"{folder}: {problem}, other ranks see one: {_REMEDY}" if problem else None)
        assert facts is not None
        compare(world, str(folder), f"manifest {manifest.describe(folder / manifest.NAME).sha256[:12]}", _REMEDY)
        damage = next((each for each in gather(world, _find_damage(facts, folder, world)) if each), None)
        if damage is None:
            return facts
        _leave_out(world, folder, damage)
    return None


def check_shared(shelf: Shelf, world: World) -> None:
    """End all ranks if they cannot write there, or do not see what rank 0 writes there."""
    refuse_together(world, shelf.why_not_writable())
    if world.size > 1:
        mark = shelf.leave_mark() if world.is_first else None
        name = gather(world, mark)[0]
        assert name is not None
        hidden = not (shelf.folder / name).exists()
        try:
            refuse_together(
                world, f"{shelf.folder} is not where rank 0 writes its snapshots: {_REMEDY}" if hidden else None
            )
        finally:
            if world.is_first:
                (shelf.folder / name).unlink()


def _name(steps: list[int]) -> str:
    return f"steps {', '.join(map(str, sorted(steps)))}" if steps else "none"


def _read(folder: Path) -> tuple[Manifest | None, str | None]:
    try:
        return manifest.read(folder), None
    except ValueError as error:
        return None, str(error)


def _find_damage(facts: Manifest, folder: Path, world: World) -> str | None:
    """Each rank reads some of the files: together they have read all."""
    mine = sorted(facts.files.items())[world.rank :: world.size]
    problems = (manifest.check_file(folder, name, file) for name, file in mine)
    damage = next((problem for problem in problems if problem), None)
    if damage is None and world.is_first:
        try:
            storage.contents(folder)
        except (storage.UnsafeError, OSError, EOFError, pickle.UnpicklingError) as error:
            return f"{storage.METADATA} cannot be read ({error})"
    return damage


def _leave_out(world: World, folder: Path, problem: str | None) -> None:
    if world.is_first:
        world.logger.warning("%s is left out: %s", folder, problem)
