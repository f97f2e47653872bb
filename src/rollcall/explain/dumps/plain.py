"""Unpickles plain data: dicts, lists, tuples, strings, numbers. A pickle can name any function to be called while it is
read; a dump comes from elsewhere, so every name is refused but the few by which torch writes lists."""

import io
import pickle
from collections.abc import Callable
from typing import Any


class CodeInsideError(ValueError):
    """The pickle names a function or class that is not plain data."""


def loads(data: bytes) -> Any:
    """ValueError, with the reason, for anything that is no complete pickle of plain data."""
    try:
        # Buffered: the unpickler reads byte by byte where it cannot look ahead, which takes twice the time.
        return _Plain(io.BufferedReader(io.BytesIO(data))).load()
    except CodeInsideError:
        raise
    except (EOFError, pickle.UnpicklingError) as error:
        raise ValueError("it is cut off" if _is_cut_off(data) else f"it is no pickle ({error})") from error
    except Exception as error:  # damaged opcodes end in errors of any type
        raise ValueError(f"it is damaged ({type(error).__name__})") from error


def _is_cut_off(data: bytes) -> bool:
    return not data.rstrip(b"\0").endswith(pickle.STOP)


def _as_list(values: Any) -> list[Any]:
    return list(values)


def _untagged(value: Any, _: str) -> Any:
    return value


_KNOWN: dict[tuple[str, str], Callable[..., Any]] = {
    ("torch.jit._pickle", "build_intlist"): _as_list,
    ("torch.jit._pickle", "build_doublelist"): _as_list,
    ("torch.jit._pickle", "build_boollist"): _as_list,
    ("torch.jit._pickle", "restore_type_tag"): _untagged,
    ("collections", "OrderedDict"): dict,
}


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN:
            raise CodeInsideError(f"it is not plain data: it names {module}.{name}")
        return _KNOWN[module, name]

    def persistent_load(self, pid: Any) -> Any:
        raise CodeInsideError("it is not plain data: it refers to something outside of it")
