"""Whether a snapshot matches the model and the optimizer that are to continue from it; if not, what differs."""

from collections.abc import Iterable
from pathlib import Path

from rollcall.train.checkpoint import storage
from rollcall.train.checkpoint.manifest import Manifest
from rollcall.train.checkpoint.state import TrainingParts, model_tensors, optimizer_names

_MOST_NAMED = 5  # of each kind, in one message
_REMEDY = "continue with the model and optimizer it was saved with, or use another folder"


def find_mismatch(parts: TrainingParts, manifest: Manifest, folder: Path) -> str | None:
    tensors = {name: entry for name, entry in storage.contents(folder).items() if entry is not None}
    saved = {name.removeprefix("model."): list(tensors[name].size) for name in tensors if name.startswith("model.")}
    ours = {name.removeprefix("model."): list(each.shape) for name, each in model_tensors(parts.model).items()}
    differences = [
        _list("its {} is not in the model", (f"{name} {saved[name]}" for name in saved if name not in ours)),
        _list("it has no {}", (f"{name} {ours[name]}" for name in ours if name not in saved)),
        _list(
            "it has {}",
            (f"{n} {saved[n]} where the model has {ours[n]}" for n in ours if n in saved and saved[n] != ours[n]),
        ),
    ]
    if any(differences):
        return f"{folder} is of another model: {'; '.join(filter(None, differences))}: {_REMEDY}"
    optimizer = type(parts.optimizer).__name__ if parts.optimizer is not None else None
    if optimizer != manifest.optimizer:
        return (
            f"{folder} was saved with {manifest.optimizer or 'no optimizer'}, this training has {optimizer or 'none'}: "
            f"{_REMEDY}"
        )
    names = [name.removeprefix("optimizer.") for name in tensors if name.startswith("optimizer.")]
    if extra := {name.rpartition(".")[0] for name in names} - set(optimizer_names(parts)):
        return f"{folder}: {_list('its optimizer also has {}', sorted(extra))}: {_REMEDY}"
    return None


def _list(sentence: str, names: Iterable[str]) -> str:
    found = list(names)
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return sentence.format(", ".join(found[:_MOST_NAMED]) + more) if found else ""
