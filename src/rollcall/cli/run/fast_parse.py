"""Reads the command line of `rollcall run` without typer's machinery, which takes longer than a warm start.

The options are those of RunOptions, and so are their names and types. Whatever is unusual here (a mistake, --help, an
option by a variable of torchrun) is left to typer, which gives the same options or says what is wrong.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from rollcall.cli.run.options import RunOptions, hint, spellings

_LISTS = ("preload", "env", "sbatch_arg", "srun_arg")
_VARIABLES = ("PET_", "ROLLCALL_RING_MB")  # by which options can be given, too
_KINDS: dict[type, Callable[[str], Any]] = {str: str, int: int, float: float, Path: Path, bool: bool}


def read(words: Sequence[str], environ: Mapping[str, str]) -> RunOptions | None:
    """The options in the words behind `rollcall run`; None if typer is to read them."""
    if any(name.startswith(_VARIABLES) for name in environ):
        return None
    options = (field.name for field in dataclasses.fields(RunOptions) if field.name not in ("script", "args"))
    fields = {name: option for option in options for name in spellings(option)}
    values: dict[str, Any] = {}
    try:
        left = iter(words)
        script = _script(left, fields, values)
        return RunOptions(script=script, args=list(left) or None, **values)
    except (KeyError, ValueError, StopIteration):
        return None


def _script(words: Iterator[str], fields: Mapping[str, str], values: dict[str, Any]) -> str:
    """The first word that is no option. The values of the options before it are put into `values`."""
    for word in words:
        if not word.startswith("-"):
            return word
        name, has_value, value = word.partition("=")
        if not word.startswith("--"):
            name, value, has_value = word[:2], word[2:], word[2:]
        field = fields[name]
        if _kind(field) is bool:
            if has_value:
                raise ValueError(word)
            values[field] = True
            continue
        given = value if has_value else next(words)
        if given.startswith("-") and not has_value and not _is_number(given):
            raise ValueError(given)  # typer takes it for a value; whoever typed it has forgotten one
        _set(values, field, given)
    raise ValueError("no script")


def _set(values: dict[str, Any], field: str, given: str) -> None:
    kind = _kind(field)
    if field == "ring_mb" and not 1 <= int(given) <= 65535:
        raise ValueError(given)
    values[field] = [*values.get(field, []), given] if field in _LISTS else _KINDS[kind](given)


def _kind(field: str) -> type:
    """str for `str | None`, and so on."""
    annotated = get_args(hint(field))[0]
    return next((each for each in (annotated, *get_args(annotated)) if each in _KINDS), str)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
