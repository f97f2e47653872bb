"""The fields of run.json that rollcall reads, and their types. A field of another type is left out, as if it were
missing: the file may be damaged, or of another version.

Not by pydantic, whose import would delay every command that reads a run.
"""

from collections.abc import Callable, Iterator
from typing import Any

_Fits = Callable[[Any, str, list[str]], bool]  # a value, its name, and the names of what was left out of it
_MOST = 1 << 62
_MOST_SLOTS = 1 << 20  # of a host: a larger number is damaged, and would fill the memory


def understood(facts: dict[str, Any]) -> dict[str, Any]:
    """The fields that have the expected types; `misread` names the others."""
    misread: list[str] = []
    _RUN(facts, "", misread)
    return {**facts, "misread": misread} if misread else facts


def _is(*types: type) -> _Fits:
    return lambda value, *_: isinstance(value, types) and (not isinstance(value, int) or abs(value) < _MOST)


def _slots(value: Any, *_: Any) -> bool:
    return isinstance(value, int) and 0 <= value < _MOST_SLOTS


def _fields(**wanted: _Fits) -> _Fits:
    """A dict with these fields, each of which may be missing; other fields are not checked."""
    return lambda value, name, misread: _keep(value, name, misread, ((key, wanted[key]) for key in wanted))


def _each(wanted: _Fits) -> _Fits:
    """A dict with any keys."""
    return lambda value, name, misread: _keep(value, name, misread, ((key, wanted) for key in list(value)))


def _keep(value: Any, name: str, misread: list[str], wanted: Iterator[tuple[str, _Fits]]) -> bool:
    if not isinstance(value, dict):
        return False
    for key, fits in wanted:
        inner = f"{name}.{key}".lstrip(".")
        if value.get(key) is not None and not fits(value[key], inner, misread):
            del value[key]
            misread.append(inner)
    return True


def _list(wanted: _Fits) -> _Fits:
    """A list. An element that does not fit becomes an empty dict, so that the others keep their places."""

    def fits(value: Any, name: str, misread: list[str]) -> bool:
        if not isinstance(value, list):
            return False
        for number, each in enumerate(value):
            if not wanted(each, f"{name}.{number}", misread):
                value[number] = {}
                misread.append(f"{name}.{number}")
        return True

    return fits


def _readings(value: Any, *_: Any) -> bool:
    """When a clock was compared, by how much it was ahead, and how wrong that may be."""
    return isinstance(value, list) and all(
        isinstance(each, list) and len(each) == 3 and all(isinstance(number, int | float) for number in each)
        for each in value
    )


def _names(value: Any, *_: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _ranks(value: Any, *_: Any) -> bool:
    return isinstance(value, list) and all(_slots(each) for each in value)


_ATTEMPT = _fields(
    world_size=_slots,
    outcome=_is(str),
    exit_codes=_each(_is(int)),
    ended_ns=_each(_is(int)),
    asked=_each(_is(bool, int, float, str)),
    causes=_each(_is(str)),
    pids=_each(_is(int)),
    idle=_each(_is(bool)),
    asleep=_is(bool),
    lost=_each(_fields(why=_is(str), ranks=_ranks)),
    unreachable=_each(_names),
)
_RUN = _fields(
    outcome=_is(str),
    host=_is(str),
    launcher_pid=_is(int),
    plan=_fields(grace_s=_is(int, float), hang_after_s=_is(int, float)),
    versions=_fields(rollcall=_is(str)),
    hosts=_each(_fields(slots=_slots, clock_readings=_readings)),
    attempts=_list(_ATTEMPT),
)
