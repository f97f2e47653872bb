"""One small distributed test, written twice: on rollcall's warm ranks, and with torch.multiprocessing.spawn."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 4
repeat = pytest.mark.parametrize("number", range(int(os.environ.get("ROLLCALL_BENCH_TESTS", "3"))))


def sum_over_ranks(**world: Any) -> None:
    dist.init_process_group("gloo", **world)
    total = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(total)
    assert total.item() == sum(range(RANKS))
    dist.destroy_process_group()


@repeat
@pytest.mark.ranks(RANKS)
def test_with_rollcall(number: int) -> None:
    sum_over_ranks()


@repeat
def test_with_spawn(number: int, tmp_path: Path) -> None:
    mp.spawn(spawned_rank, (f"file://{tmp_path}/store",), nprocs=RANKS)  # type: ignore[no-untyped-call]


def spawned_rank(rank: int, init_method: str) -> None:
    sum_over_ranks(init_method=init_method, rank=rank, world_size=RANKS)
