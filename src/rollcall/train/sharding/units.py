"""Which modules are units: the parameters of one unit are gathered before it runs, and freed after it."""

from collections.abc import Callable, Sequence

from torch import nn

from rollcall.train.sharding.options import Units

_MOST_NAMED = 8


def find_units(model: nn.Module, wanted: Units) -> list[nn.Module]:
    """The units, inner ones first: that is the order in which they must be sharded. The model itself is not in it."""
    chosen = _selector(model, wanted)
    found = [module for name, module in model.named_modules() if module is not model and chosen(name, module)]
    return found[::-1]


def find_problem(model: nn.Module, wanted: Units) -> str | None:
    """Units that match nothing would silently make the whole model one unit."""
    if wanted is None:
        return None
    if callable(wanted):
        count = sum(1 for _ in model.modules())
        return None if find_units(model, wanted) else f"units: the function selects none of the model's {count} modules"
    if not isinstance(wanted, str | list | tuple):
        return f"units is {wanted!r}: expected a name of a class, several in a list, or a function"
    classes = {type(module).__name__ for module in model.modules()}
    missing = [name for name in _names(wanted) if name not in classes]
    if not missing:
        return None
    known = sorted(classes)[:_MOST_NAMED]
    more = f" and {len(classes) - _MOST_NAMED} more" if len(classes) > _MOST_NAMED else ""
    return f"units: no module of the model is a {missing[0]!r}: its classes are {', '.join(known)}{more}"


def _selector(model: nn.Module, wanted: Units) -> Callable[[str, nn.Module], bool]:
    if callable(wanted):
        return wanted
    names = set(_names(wanted) if wanted is not None else _no_split_names(model))
    if names:
        return lambda _, module: type(module).__name__ in names
    layers = {id(layer) for module in model.modules() if isinstance(module, nn.ModuleList) for layer in module}
    return lambda _, module: id(module) in layers


def _names(wanted: str | Sequence[str]) -> Sequence[str]:
    return [name.strip() for name in wanted.split(",")] if isinstance(wanted, str) else wanted


def _no_split_names(model: nn.Module) -> list[str]:
    """The classes that transformers' models name; those that this model does not contain are left out."""
    classes = {type(module).__name__ for module in model.modules()}
    named = (getattr(module, "_no_split_modules", None) or () for module in model.modules())
    return [name for names in named for name in names if name in classes]
