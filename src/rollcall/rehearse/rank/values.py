"""The data of tensors that are pretended: known where a small tensor was computed from known ones, else unknown.

What is known belongs to a storage, not to a tensor: so views need no special care, and a write through one of them is
seen by all. If Python reads an unknown value, this is always noted: its line, the assumed value, and whether the
program only printed it.
"""

import math
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import rollcall
from rollcall.record import sites

# Values on which programs branch (flags, lengths, configurations) are small. Models compute with larger data: to know
# it, one would have to run the model. Objects that ranks send each other are pickled into bytes, and may be large: the
# plan of a checkpoint names every tensor.
_MOST_BYTES, _MOST_PICKLED_BYTES = 64 << 10, 4 << 20
_ASSUMED = {bool: False, int: 1, float: 1.0}


@dataclass
class UnknownValue:
    """A line on which Python read a value that is not known."""

    file: str
    line: int
    assumed: str
    reads: int = 0
    decided: set[str] = field(default_factory=set)  # lines on which the program compared it, or made it a plain number
    told: set[str] = field(default_factory=set)  # lines on which an object with it was pickled for other ranks


def is_followed(size_bytes: int, dtype: torch.dtype) -> bool:
    return size_bytes <= (_MOST_PICKLED_BYTES if dtype is torch.uint8 else _MOST_BYTES)


class Notes:
    """The unknowns that Python read on one rank."""

    def __init__(self, assumptions: dict[str, float]) -> None:
        self.assumptions = assumptions
        self.unknowns: dict[tuple[str, int], UnknownValue] = {}

    def read(self, kind: type) -> tuple[Any, UnknownValue]:
        """The value to continue with, and the note of it."""
        file, line = _readers_line()
        assumed = self.assumptions.get(f"{Path(file).name}:{line}")
        value = kind(_ASSUMED[kind] if assumed is None else assumed)
        return value, self._add(file, line, repr(value))

    def assumed_size(self) -> float | None:
        """How many rows an op gives at this line, where that depends on data and --assume says it."""
        file, line = _readers_line()
        found = self.assumptions.get(f"{Path(file).name}:{line}")
        if found is not None:
            self._add(file, line, f"{found:g} rows" if found >= 1 else f"{found:g} of the rows").decided.add(
                users_place()
            )
        return found

    def note(self, assumed: str) -> None:
        """A value that is no number is not known here; `assumed` says in words what is used in its place."""
        self._add(*users_line(), assumed).decided.add(users_place())

    def _add(self, file: str, line: int, assumed: str) -> UnknownValue:
        found = self.unknowns.setdefault((file, line), UnknownValue(file, line, assumed))
        found.reads += 1
        return found


notes = Notes({})


def use_notes(made: Notes) -> None:
    global notes
    notes = made


def users_line() -> tuple[str, int]:
    """The line of the program that runs."""
    places = sites.user_frames(sys._getframe(1))
    file, line, _ = sites.describe(places)[0]
    return file, line


def kind_of(dtype: torch.dtype) -> type:
    return bool if dtype is torch.bool else float if dtype.is_floating_point else int


def read(dtype: torch.dtype) -> Any:
    """A number for Python in place of an unknown one. It remembers where it came from."""
    kind = kind_of(dtype)
    value, note = notes.read(kind)
    if kind is bool:  # Python allows no subclass of bool, so it cannot be followed further
        note.decided.add(users_place())
        return value
    return _noted(value, note)


def read_plainly(dtype: torch.dtype) -> Any:
    """The same, if only a plain number can be passed on: then it is not known what the program does with it."""
    value, note = notes.read(kind_of(dtype))
    note.decided.add(users_place())
    return value


# A line in these files was called by the program or by a library: the line of that caller is named.
_INNER = tuple(f"{Path(name).parent}/" for name in (torch.__file__, rollcall.__file__))
_STANDARD = f"{Path(threading.__file__).parent}/"


def _readers_line() -> tuple[str, int]:
    """The line that reads a value: of the program, or of a library such as a Trainer."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and _is_inner(frame.f_code.co_filename) and not _is_users(frame):
        frame = frame.f_back
    return (frame.f_code.co_filename, frame.f_lineno) if frame is not None else users_line()


def _is_inner(file: str) -> bool:
    return file.startswith(_INNER) or (file.startswith(_STANDARD) and "-packages/" not in file)


def _is_users(frame: FrameType) -> bool:
    return sites.is_users_file(frame.f_code.co_filename)


def users_place() -> str:
    """Returns the user's place as it is printed: train.py:33."""
    file, line = users_line()
    return f"{Path(file).name}:{line}"


_ARITHMETIC = (
    *("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "pow", "rpow", "neg", "abs", "round"),
    *("floordiv", "rfloordiv", "mod", "rmod"),
)
_DECISIONS = ("lt", "le", "gt", "ge", "eq", "ne", "bool", "int", "index", "hash")


def _arithmetic(plain: Callable[..., Any]) -> Callable[..., Any]:
    def compute(self: Any, *others: Any) -> Any:
        result = plain(self, *others)
        return _noted(result, self.note) if type(result) in _NOTED else result

    return compute


def _decision(plain: Callable[..., Any]) -> Callable[..., Any]:
    def decide(self: Any, *others: Any) -> Any:
        self.note.decided.add(users_place())
        return plain(self, *others)

    return decide


_is_telling = False  # whether objects are pickled for other ranks, and not to be saved


@contextmanager
def telling() -> Iterator[None]:
    global _is_telling
    _is_telling = True
    try:
        yield
    finally:
        _is_telling = False


def _note_sharing(number: Any) -> Any:
    """Other ranks receive a plain number: it is not known what they do with it, nor how many bytes it takes."""
    if _is_telling:
        number.note.decided.add(users_place())
        number.note.told.add(users_place())
    return number


def _noted_class(plain: type) -> type:
    """Makes the class of numbers that carry the note of the unknown value from which they were computed. `float()` is
    not a decision by itself: formatting calls it."""
    positive: Any = vars(plain)["__pos__"]  # makes a plain number of it
    methods: dict[str, Any] = {
        "__reduce__": lambda number: (plain, (positive(_note_sharing(number)),)),
        **dict.fromkeys(("__copy__", "__deepcopy__"), lambda number, *_: number),
    }
    for words, replaced in ((_ARITHMETIC, _arithmetic), (_DECISIONS, _decision)):
        for name in (f"__{word}__" for word in words):
            if hasattr(plain, name):
                methods[name] = replaced(getattr(plain, name))
    return type(f"Noted{plain.__name__.title()}", (plain,), methods)


_NOTED = {kind: _noted_class(kind) for kind in (float, int)}


def _noted(value: float, note: UnknownValue) -> Any:
    made = _NOTED[type(value)](value)
    made.note = note
    return made


def noted_in(given: Any) -> Iterator[UnknownValue]:
    """Unknown values among arguments, also in lists of them."""
    for each in given:
        if type(each) in (list, tuple):
            yield from noted_in(each)
        elif type(each) in _NOTED.values():
            yield each.note


class Storages:
    """The bytes that are known of each storage on the device, by its address."""

    def __init__(self) -> None:
        self._known: dict[int, torch.UntypedStorage] = {}

    def get(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A real tensor with the data of a pretended one; None if that is not known."""
        if not self._known:
            return None
        real = self._known.get(tensor.untyped_storage()._cdata)
        if real is None:
            return None
        return torch.empty(0, dtype=tensor.dtype, device="cpu").set_(
            real, tensor.storage_offset(), tensor.size(), tensor.stride()
        )

    def set(self, tensor: torch.Tensor, data: torch.Tensor) -> None:
        """Note the data of a tensor. If it is a part of a storage, the rest of the storage must be known already."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._known:
            if not is_followed(storage.nbytes(), tensor.dtype) or _extent_bytes(tensor) < storage.nbytes():
                return
            self._known[key] = torch.UntypedStorage(storage.nbytes())  # type: ignore[no-untyped-call]
            weakref.finalize(storage, self._known.pop, key, None)
        known = self.get(tensor)
        assert known is not None
        known.copy_(data)

    def forget(self, tensor: torch.Tensor) -> None:
        """It was overwritten by something unknown."""
        if self._known:
            self._known.pop(tensor.untyped_storage()._cdata, None)


def _extent_bytes(tensor: torch.Tensor) -> int:
    return math.prod(tensor.shape) * tensor.element_size()
