"""The store of a process group. Ranks do not run together, so a rank does not see what another one writes."""

from typing import Any, NoReturn

import torch  # noqa: F401  (its C++ classes)
import torch.distributed as dist
from torch.testing._internal.distributed import fake_pg  # noqa: F401  (registers the backend)

from rollcall.rehearse.rank.unsupported import Unsupported


class OwnStore(dist.Store):
    """Has what this rank has written; values of other ranks are not known. Also used in place of TCPStore and
    FileStore, whose arguments say where other ranks are."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()
        self._own: dict[str, bytes] = {}

    def set(self, key: str, value: Any) -> None:
        self._own[key] = value.encode() if isinstance(value, str) else bytes(value)

    def get(self, key: str) -> bytes:
        return self._own[key] if key in self._own else _refuse()

    def check(self, keys: list[str]) -> bool:
        return self._has(keys) or _refuse()

    def wait(self, keys: list[str], *_: Any) -> None:
        if not self._has(keys):
            _refuse()

    def delete_key(self, key: str) -> bool:
        return self._own.pop(key, None) is not None

    def _has(self, keys: list[str]) -> bool:
        return all(key in self._own for key in keys)

    def add(self, key: str, amount: int) -> int:
        return _refuse()


for _name in ("compare_set", "append", "multi_get", "num_keys", "queue_pop"):
    setattr(OwnStore, _name, lambda *_: _refuse())


def _refuse(*_: Any) -> NoReturn:
    raise Unsupported(
        "values that ranks exchange through a store cannot be rehearsed",
        "use a collective such as broadcast_object_list, or leave this part out",
    )
