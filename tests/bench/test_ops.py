"""What is measured is what the op is meant to do: every result is checked, and a wrong one is noticed."""

import pytest
import torch

from rollcall import spawn
from rollcall.bench import ops
from rollcall.bench.settings import DTYPES, OPS


def _count_wrong(rank: int, ranks: int) -> list[tuple[str, str, str, int]]:
    """Every op, dtype and place on real ranks, at a size that does not ops_per_call well."""
    import rollcall

    found = []
    with rollcall.init() as world:
        buffers = ops.Buffers.of(8192, world.device)
        for op in OPS:
            for name in DTYPES:
                dtype = getattr(torch, name)
                for place in ops.placements_of(op):
                    size = ops.rounded_size(op, 5000, dtype.itemsize, ranks)
                    input, output = buffers.views(size, dtype)
                    buffers.input.fill_(0), buffers.output.fill_(0)
                    trial = ops.prepare(op, place, rank, ranks, input, output)
                    trial.fill()
                    trial.call()
                    found.append((op, name, place, trial.wrong()))
    return found


@pytest.mark.parametrize("ranks", [2, 3])
def test_results_are_right(ranks: int) -> None:
    """Every op gives the right result for every dtype, in place and out of place, on two and on three ranks."""
    for found in spawn(_count_wrong, ranks, (ranks,)):
        assert [case for case in found if case[3]] == []
        assert {case[0] for case in found} == set(OPS)


def test_a_wrong_element_is_counted() -> None:
    """One element that is not what it must be is one wrong element, wherever it lies."""
    pattern = torch.tensor([0.0, 1.0, 2.0])
    result = torch.zeros(1000)
    ops.fill_with(result, pattern)
    assert ops.count_wrong(result, pattern) == 0
    for place in (0, 500, 999):
        tampered = result.clone()
        tampered[place] += 1
        assert ops.count_wrong(tampered, pattern) == 1


def test_neighbours_give_other_values() -> None:
    """An op that mixed up two neighbouring ranks, or two places, would give another result."""
    like = torch.zeros(1)
    for ranks in (2, 64, 200):
        assert not torch.equal(ops.pattern(0, ranks, like), ops.pattern(1, ranks, like))
        assert len(set(ops.pattern(0, ranks, like).tolist())) == ops.period(ranks)
        assert ops.sum_pattern(ranks, like).max() <= 256  # exact in bfloat16


def test_factors_are_those_of_nccl_tests() -> None:
    """Bus bandwidth is algorithm bandwidth times 2(n-1)/n for all_reduce, (n-1)/n for what each rank has a part of."""
    assert ops.bus_factor("all_reduce", 4) == 1.5
    assert {ops.bus_factor(op, 4) for op in ("all_gather", "reduce_scatter", "all_to_all")} == {0.75}
    assert {ops.bus_factor(op, 4) for op in ("broadcast", "reduce", "send_one_way", "send_two_way")} == {1.0}


def test_sizes_have_whole_elements_for_all() -> None:
    """A size is rounded to whole elements for each rank, and never to nothing."""
    assert ops.rounded_size("all_reduce", 8, 4, 3) == 8
    assert ops.rounded_size("all_gather", 8, 4, 3) == 12
    assert ops.rounded_size("all_to_all", 100, 8, 3) == 96
    assert ops.rounded_size("barrier", 100, 8, 3) == 0
