"""Whether a snapshot matches the model and the optimizer that are to continue from it; if not, what differs."""

from pathlib import Path

from rollcall.train.checkpoint import storage
from rollcall.train.checkpoint.manifest import Manifest
from rollcall.train.checkpoint.state import TrainingParts, model_tensors, optimizer_names
from rollcall.train.optimizers import class_names
from rollcall.train.weights.mismatch import describe_mismatch, list_names

_REMEDY = "continue with the model and optimizer it was saved with, or use another folder"


def find_mismatch(parts: TrainingParts, manifest: Manifest, folder: Path) -> str | None:
    tensors = {name: entry for name, entry in storage.contents(folder).items() if entry is not None}
    saved = {name.removeprefix("model."): list(tensors[name].size) for name in tensors if name.startswith("model.")}
    ours = {name.removeprefix("model."): list(each.shape) for name, each in model_tensors(parts.model).items()}
    if differences := describe_mismatch(saved, ours):
        return f"{folder} is of another model: {differences}: {_REMEDY}"
    optimizer = class_names(parts.optimizers)
    if optimizer != manifest.optimizer:
        return (
            f"{folder} was saved with {manifest.optimizer or 'no optimizer'}, this training has {optimizer or 'none'}: "
            f"{_REMEDY}"
        )
    names = [name.removeprefix("optimizer.") for name in tensors if name.startswith("optimizer.")]
    if extra := {name.rpartition(".")[0] for name in names} - set(optimizer_names(parts)):
        return f"{folder}: {list_names('its optimizer also has {}', sorted(extra))}: {_REMEDY}"
    return None
