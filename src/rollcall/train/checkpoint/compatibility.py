"""Whether a snapshot fits the model and the optimizer that are to continue from it; if not, what does not."""

from collections.abc import Iterable
from pathlib import Path

from rollcall.train.checkpoint import storage
from rollcall.train.checkpoint.manifest import Manifest
from rollcall.train.checkpoint.state import Parts, model_tensors, optimizer_names

_MOST_NAMED = 5  # of each kind, in a sentence


def what_does_not_fit(parts: Parts, facts: Manifest, folder: Path) -> str | None:
    known = {name: entry for name, entry in storage.contents(folder).items() if entry is not None}
    saved = {_short(name): list(entry.size) for name, entry in known.items() if name.startswith("model.")}
    ours = {_short(name): list(tensor.shape) for name, tensor in model_tensors(parts.model).items()}
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
    if optimizer != facts.optimizer:
        return f"{folder} is of {facts.optimizer or 'no optimizer'}, this training has {optimizer or 'none'}: {_REMEDY}"
    foreign = {name.removeprefix("optimizer.").rpartition(".")[0] for name in known if name.startswith("optimizer.")}
    if extra := foreign - set(optimizer_names(parts)):
        return f"{folder}: {_list('its optimizer also has {}', sorted(extra))}: {_REMEDY}"
    return None


_REMEDY = "continue with what it was taken of, or use another folder"


def _short(name: str) -> str:
    return name.removeprefix("model.")


def _list(words: str, names: Iterable[str]) -> str:
    found = list(names)
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return words.format(", ".join(found[:_MOST_NAMED]) + more) if found else ""
