"""Reads the command line of `rollcall run` without typer: to import typer takes longer than a warm start.

The options, their names and their types are those of RunOptions. Only plain command lines are read here. typer reads
everything else: mistakes, --help, options from torchrun's environment variables.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from rollcall.cli.run.options import RunOptions, hint, spellings
from rollcall.coordinator.early_agent import options_before_script
from rollcall.record.ring_format import MB_VARIABLE, MEGABYTES

_LISTS = ("preload", "env", "sbatch_arg", "srun_arg")
_VARIABLES = ("PET_", MB_VARIABLE)  # by which options can be given, too
_KINDS: dict[type, Callable[[str], Any]] = {str: str, int: int, float: float, Path: Path, bool: bool}


def read(arguments: Sequence[str], environ: Mapping[str, str]) -> RunOptions | None:
    """The options in the arguments of `rollcall run`; None if typer must read them."""
    if any(name.startswith(_VARIABLES) for name in environ):
        return None
    options = (field.name for field in dataclasses.fields(RunOptions) if field.name not in ("script", "args"))
    fields = {name: option for option in options for name in spellings(option)}
    values: dict[str, Any] = {}
    left = iter(arguments)
    try:
        for name, value in options_before_script(left):
            if not name.startswith("-"):
                return RunOptions(script=name, args=list(left) or None, **values)
            _set(values, fields[name], value)
    except (KeyError, ValueError):
        pass
    return None


def _set(values: dict[str, Any], field: str, given: str | None) -> None:
    kind = _kind(field)
    if (given is None) is not (kind is bool):
        raise ValueError(f"{field} has no value, or one too many")
    if given is None:
        values[field] = True
        return
    if field == "ring_mb" and int(given) not in MEGABYTES:
        raise ValueError(given)
    values[field] = [*values.get(field, []), given] if field in _LISTS else _KINDS[kind](given)


def _kind(field: str) -> type:
    """str for `str | None`, and so on."""
    annotated = get_args(hint(field))[0]
    return next((each for each in (annotated, *get_args(annotated)) if each in _KINDS), str)
