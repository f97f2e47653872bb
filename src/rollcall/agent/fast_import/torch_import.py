"""Speeds up two things that torch does while it is imported, with the same result."""

import contextlib
import dataclasses
import functools
import inspect
import sys
from collections.abc import Iterator
from types import CodeType, FrameType, ModuleType
from typing import Any


@contextlib.contextmanager
def inspecting() -> Iterator[None]:
    """For each op that torch registers, it asks inspect for file, line and module. That takes a millisecond, because
    inspect also reads the text of the line, which is not used, and looks at the files of all modules."""
    getframeinfo, getmodule = inspect.getframeinfo, inspect.getmodule

    def module_of(object: object, _filename: str | None = None) -> ModuleType | None:
        own = sys.modules.get(object.f_globals.get("__name__", "")) if isinstance(object, FrameType) else None
        return own or getmodule(object, _filename)

    inspect.getframeinfo, inspect.getmodule = functools.partial(getframeinfo, context=0), module_of
    try:
        yield
    finally:
        inspect.getframeinfo, inspect.getmodule = getframeinfo, getmodule


@contextlib.contextmanager
def making_dataclasses() -> Iterator[None]:
    """torch makes a dataclass with the same text for each of a hundred ops: the text is compiled once."""
    compiled: dict[str, CodeType] = {}

    def execute(text: str, names: dict[str, Any] | None, found: dict[str, Any]) -> None:
        code = compiled.get(text)
        if code is None:
            code = compiled[text] = compile(text, "<string>", "exec")
        exec(code, names, found)

    dataclasses.exec = execute  # type: ignore[attr-defined]  # before the built-in one
    try:
        yield
    finally:
        del dataclasses.exec  # type: ignore[attr-defined]
