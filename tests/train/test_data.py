"""Which rank trains on which sample."""

import signal
from collections import Counter
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rollcall
from rollcall.train.data import RankBatchSampler
from tests.train.conftest import WarmRanks
from tests.train.small import Data

SIZES = {"length": st.integers(1, 90), "ranks": st.integers(1, 9), "batch_size": st.integers(1, 7)}


def make_samplers(
    length: int, ranks: int, batch_size: int, uneven: str = "weigh", start: int = 0
) -> list[RankBatchSampler]:
    made = [RankBatchSampler(length, rank, ranks, batch_size, True, 0, uneven) for rank in range(ranks)]  # type: ignore[arg-type]
    for each in made:
        each.begin(4, start)
    return made


@settings(deadline=None)
@given(**SIZES)
def test_no_sample_is_lost_or_doubled_at_any_world_size(length: int, ranks: int, batch_size: int) -> None:
    """Every sample counts once per epoch over all ranks, and all ranks take the same number of steps."""
    seen: Counter[int] = Counter()
    steps = set()
    for sampler in make_samplers(length, ranks, batch_size):
        batches = list(sampler)
        shares = [sampler.share(*span) for span in sampler.spans()]
        steps.add(len(batches))
        for batch, share in zip(batches, shares, strict=True):
            assert len(batch) == max(share.mine, 1)
            seen.update(batch[: share.mine])
    assert seen == Counter(range(length))
    assert steps == {len(make_samplers(length, ranks, batch_size)[0])}


@settings(deadline=None)
@given(**SIZES, others=st.integers(1, 9), data=st.data())
def test_another_number_of_ranks_continues_where_these_stopped(
    length: int, ranks: int, batch_size: int, others: int, data: st.DataObject
) -> None:
    """The samples before and after the interruption together are the epoch, each once."""
    done = data.draw(st.integers(0, len(make_samplers(length, ranks, batch_size)[0])))
    before: list[int] = []
    stopped_at = 0
    for sampler in make_samplers(length, ranks, batch_size):
        for batch, span in list(zip(sampler, sampler.spans(), strict=True))[:done]:
            before += batch[: sampler.share(*span).mine]
            stopped_at = span[1]
    after = [
        sample
        for sampler in make_samplers(length, others, batch_size, start=stopped_at)
        for batch, span in zip(sampler, sampler.spans(), strict=True)
        for sample in batch[: sampler.share(*span).mine]
    ]
    assert sorted(before + after) == list(range(length))


@settings(deadline=None)
@given(**SIZES)
def test_drop_leaves_out_less_than_one_batch_of_all_ranks(length: int, ranks: int, batch_size: int) -> None:
    """The remaining batches are full on every rank."""
    samplers = make_samplers(length, ranks, batch_size, "drop")
    assert {len(batch) for sampler in samplers for batch in sampler} <= {batch_size}
    assert 0 <= length - samplers[0].samples_per_epoch < batch_size * ranks


def load_in_two_parts(workers: int, stop_after: int | None) -> list[list[int]]:
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
def test_a_loader_continues_in_mid_epoch(ranks: WarmRanks, workers: int) -> None:
    """Also with workers that have read ahead: the position counts the batches that the rank received."""
    whole = ranks(partial(load_in_two_parts, workers, None), 2)
    assert ranks(partial(load_in_two_parts, workers, 2), 2) == whole
    assert sorted(sample for rank in whole for batch in rank for sample in batch) == list(range(23))


def workers_ignore_sigterm() -> bool:
    with rollcall.init() as world:

        class Handlers(torch.utils.data.Dataset[bool]):
            def __len__(self) -> int:
                return 4

            def __getitem__(self, index: int) -> bool:
                return signal.getsignal(signal.SIGTERM) is signal.SIG_IGN

        loader = rollcall.prepare_dataloader(Handlers(), world, 4, num_workers=1, multiprocessing_context="fork")
        return all(all(batch) for batch in loader)


def test_workers_of_a_loader_ignore_sigterm(ranks: WarmRanks) -> None:
    """The launcher signals the whole process group, and the rank needs its workers until it has saved."""
    assert ranks(workers_ignore_sigterm, 1) == [True]


def count_without_dropped() -> int:
    with rollcall.init() as world:
        return rollcall.prepare_dataloader(Data(), world, 4, uneven="drop").samples_per_epoch


def test_dropped_samples_are_reported(ranks: WarmRanks) -> None:
    """Once, by rank 0."""
    assert ranks(count_without_dropped, 2) == [40, 40]
    assert ranks.output.count("6 of 46 samples are left out") == 1
