"""How the tensors of a checkpoint differ from those of a model, in words."""

from collections.abc import Iterable, Mapping, Sequence

_MOST_NAMED = 5  # of each kind, in one message
Shapes = Mapping[str, Sequence[int]]


def describe_mismatch(saved: Shapes, ours: Shapes, not_needed: Iterable[str] = ()) -> str:
    """Nothing if they match. `not_needed` are tensors of the model that the checkpoint may lack."""
    may_lack = set(not_needed)
    differences = [
        list_names("its {} is not in the model", (f"{n} {list(saved[n])}" for n in saved if n not in ours)),
        list_names("it has no {}", (f"{n} {list(ours[n])}" for n in ours if n not in saved and n not in may_lack)),
        list_names(
            "it has {}",
            (
                f"{n} {list(saved[n])} where the model has {list(ours[n])}"
                for n in ours
                if n in saved and list(saved[n]) != list(ours[n])
            ),
        ),
    ]
    return "; ".join(filter(None, differences))


def list_names(sentence: str, names: Iterable[str]) -> str:
    """The sentence with the first few names, or nothing if there are none."""
    found = list(names)
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return sentence.format(", ".join(found[:_MOST_NAMED]) + more) if found else ""
