"""Parts of torch that are replaced in a rehearsed rank."""

import pytest
from torch.distributed.tensor import _sharding_prop

from rollcall.rehearse.rank import patches


class Schema:
    """Counts how often it is asked for its tensors."""

    asked = 0

    @property
    def args_spec(self) -> tuple[()]:
        self.asked += 1
        return ()


def test_strided_shards_are_looked_for_once_in_each_op(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "_propagate_use_strided_shard_flag"
    monkeypatch.setattr(_sharding_prop, name, getattr(_sharding_prop, name))  # to be put back
    patches._shorten_sharding()
    first, second = Schema(), Schema()
    for schema in (first, first, first, second):
        getattr(_sharding_prop, name)(None, schema)
    assert (first.asked, second.asked) == (1, 1)
