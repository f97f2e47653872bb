"""Who learns from which sample."""

import signal
from collections import Counter
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rollcall
from rollcall.train.data import Shards
from tests.train.conftest import Warm
from tests.train.small import Data

SIZES = {"length": st.integers(1, 90), "ranks": st.integers(1, 9), "batch_size": st.integers(1, 7)}


def shards_of(length: int, ranks: int, batch_size: int, uneven: str = "weigh", start: int = 0) -> list[Shards]:
    made = [Shards(length, rank, ranks, batch_size, True, 0, uneven) for rank in range(ranks)]  # type: ignore[arg-type]
    for each in made:
        each.begin(4, start)
    return made


@settings(deadline=None)
@given(**SIZES)
def test_no_sample_is_lost_or_doubled_at_any_world_size(length: int, ranks: int, batch_size: int) -> None:
    """Over all ranks every sample counts once an epoch, and all ranks take the same number of steps."""
    seen: Counter[int] = Counter()
    steps = set()
    for shards in shards_of(length, ranks, batch_size):
        batches = list(shards)
        shares = [shards.share(*span) for span in shards.spans()]
        steps.add(len(batches))
        for batch, share in zip(batches, shares, strict=True):
            assert len(batch) == max(share.mine, 1)
            seen.update(batch[: share.mine])
    assert seen == Counter(range(length))
    assert steps == {len(shards_of(length, ranks, batch_size)[0])}


@settings(deadline=None)
@given(**SIZES, others=st.integers(1, 9), data=st.data())
def test_other_ranks_go_on_where_these_stopped(
    length: int, ranks: int, batch_size: int, others: int, data: st.DataObject
) -> None:
    """What was done before the interruption and what is done after it by another world is the epoch, once."""
    done = data.draw(st.integers(0, len(shards_of(length, ranks, batch_size)[0])))
    before: list[int] = []
    stopped_at = 0
    for shards in shards_of(length, ranks, batch_size):
        for batch, span in list(zip(shards, shards.spans(), strict=True))[:done]:
            before += batch[: shards.share(*span).mine]
            stopped_at = span[1]
    after = [
        sample
        for shards in shards_of(length, others, batch_size, start=stopped_at)
        for batch, span in zip(shards, shards.spans(), strict=True)
        for sample in batch[: shards.share(*span).mine]
    ]
    assert sorted(before + after) == list(range(length))


@settings(deadline=None)
@given(**SIZES)
def test_drop_leaves_out_less_than_one_batch_of_all_ranks(length: int, ranks: int, batch_size: int) -> None:
    """What is left is whole batches on every rank."""
    all_of_them = shards_of(length, ranks, batch_size, "drop")
    assert {len(batch) for shards in all_of_them for batch in shards} <= {batch_size}
    assert 0 <= length - all_of_them[0].samples_per_epoch < batch_size * ranks


def loaded(workers: int, stop_after: int | None) -> list[list[int]]:
    with rollcall.init() as world:
        data = torch.utils.data.TensorDataset(torch.arange(23))
        options = {"multiprocessing_context": "fork"} if workers else {}
        loader = rollcall.prepare_dataloader(data, world, 3, num_workers=workers, **options)
        first = []
        for (batch,) in loader:
            first.append(batch[: loader.share.mine].tolist())
            if stop_after is not None and len(first) == stop_after:
                break
        other = rollcall.prepare_dataloader(data, world, 3, num_workers=workers, **options)
        other.load_state_dict(loader.state_dict())
        if other.epoch == 0:
            first += [batch[: other.share.mine].tolist() for (batch,) in other]
        return first


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_goes_on_in_mid_epoch(ranks: Warm, workers: int) -> None:
    """With workers that have read ahead, too: position counts what was given out."""
    whole = ranks(partial(loaded, workers, None), 2)
    assert ranks(partial(loaded, workers, 2), 2) == whole
    assert sorted(sample for rank in whole for batch in rank for sample in batch) == list(range(23))


def workers_signals() -> bool:
    with rollcall.init() as world:

        class Handlers(torch.utils.data.Dataset[bool]):
            def __len__(self) -> int:
                return 4

            def __getitem__(self, index: int) -> bool:
                return signal.getsignal(signal.SIGTERM) is signal.SIG_IGN

        loader = rollcall.prepare_dataloader(Handlers(), world, 4, num_workers=1, multiprocessing_context="fork")
        return all(all(batch) for batch in loader)


def test_workers_of_a_loader_do_not_hear_of_a_preemption(ranks: Warm) -> None:
    """The launcher tells the whole process group; the rank needs its workers until it has saved."""
    assert ranks(workers_signals, 1) == [True]


def dropped() -> int:
    with rollcall.init() as world:
        return rollcall.prepare_dataloader(Data(), world, 4, uneven="drop").samples_per_epoch


def test_what_is_left_out_is_said(ranks: Warm) -> None:
    """Once, on rank 0."""
    assert ranks(dropped, 2) == [40, 40]
    assert ranks.said.count("6 of 46 samples are left out") == 1
