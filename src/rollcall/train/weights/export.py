"""Run with: python -m rollcall.train.weights.export SNAPSHOT model.safetensors [--ema] [--dtype bfloat16]

Writes the model of a snapshot to one safetensors file, tensor after tensor: no more than one of them is in memory.
"""

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from rollcall.errors import UsageError, cannot_write, install_error_hook
from rollcall.train.checkpoint import storage
from rollcall.train.checkpoint.directory import SnapshotDirectory
from rollcall.train.checkpoint.manifest import find_damage, read_manifest
from rollcall.train.weights import safetensors


def export_weights(
    snapshot: str | Path, path: str | Path, *, ema: bool = False, dtype: torch.dtype | None = None
) -> Path:
    """`snapshot` is one of them, or their folder: then the newest is taken. Returns the snapshot that was exported."""
    folder = _find_snapshot(Path(snapshot))
    prefix = "ema." if ema else "model."
    entries = storage.contents(folder)
    found = {name: each for name, each in entries.items() if each is not None and name.startswith(prefix)}
    if not found:
        raise UsageError(f"{folder} contains no {'average of the weights' if ema else 'model'}: choose another one")
    shapes = {
        name.removeprefix(prefix): (_dtype_of(each.properties.dtype, dtype), each.size) for name, each in found.items()
    }
    if problem := safetensors.find_unknown({name: kind for name, (kind, _) in shapes.items()}):
        raise UsageError(f"{folder}: {problem}")
    try:
        safetensors.write(Path(path), shapes, _read(folder, found, dtype))
    except OSError as error:
        raise cannot_write(path, error) from None
    return folder


def _find_snapshot(folder: Path) -> Path:
    steps = SnapshotDirectory(folder, keep=1).steps()
    chosen = SnapshotDirectory(folder, keep=1).path_of(steps[0]) if steps else folder
    try:
        checks = (find_damage(chosen, name, each) for name, each in read_manifest(chosen).files.items())
        damage = next((problem for problem in checks if problem), None)
    except ValueError as error:
        damage = str(error)
    if damage:
        raise UsageError(f"{chosen} is no snapshot that can be exported: {damage}")
    return chosen


def _dtype_of(saved: torch.dtype, wanted: torch.dtype | None) -> torch.dtype:
    return wanted if wanted is not None and saved.is_floating_point else saved


def _read(
    folder: Path, entries: Mapping[str, TensorStorageMetadata], dtype: torch.dtype | None
) -> Iterator[torch.Tensor]:
    for name, entry in entries.items():
        tensor = torch.empty(entry.size, dtype=entry.properties.dtype)
        storage.read({name: tensor}, folder)
        yield tensor.to(_dtype_of(tensor.dtype, dtype))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("snapshot", help="a snapshot, or the folder of snapshots")
    parser.add_argument("file", help="the .safetensors file to write")
    parser.add_argument("--ema", action="store_true", help="the moving average of the weights")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], help="of the file (as saved)")
    options = parser.parse_args()
    dtype = getattr(torch, options.dtype) if options.dtype else None
    print(f"{export_weights(options.snapshot, options.file, ema=options.ema, dtype=dtype)} is in {options.file}")


if __name__ == "__main__":
    install_error_hook()
    main()
