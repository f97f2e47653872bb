"""Dumps in which ops are missing: of open ops alone, or with their oldest ops overwritten."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from rollcall.explain.verdict import explain

from .dump_files import Entry, as_json, content, set_time, write
from .test_dumps import batch, blamed, steps, verdict


def write_open(
    folder: Path,
    ranks: dict[int, Sequence[Entry]],
    groups: dict[str, Sequence[int]] | None = None,
    after_s: float = 600,
) -> Path:
    """As torch writes it for `onlyActive`, and its debug server always does: without what is over."""
    for rank, entries in ranks.items():
        data = content(entries, {"0": range(len(ranks)), **(groups or {})})
        data["entries"] = [entry for entry in data["entries"] if entry["state"] != "completed"]
        path = folder / f"rank{rank}.json"
        path.write_bytes(as_json(data))
        set_time(path, after_s)
    return folder


def test_of_open_ops_alone_the_rank_that_is_missing_is_named(tmp_path: Path) -> None:
    waiting = [*steps(5), Entry("all_reduce", 6, 600)]
    write_open(tmp_path, {0: waiting, 1: waiting, 2: steps(5)})
    assert verdict(tmp_path) == ("missing-rank", (2,))
    problems = explain(tmp_path).run.problems
    assert any("only the ops that are not over" in problem for problem in problems)
    assert not any("TORCH_FR_BUFFER_SIZE" in problem for problem in problems)


def test_batches_that_are_over_are_not_taken_for_open_since_their_ends_are_left_out(tmp_path: Path) -> None:
    """The ops of a batch have no state of their own."""

    def made(rank: int) -> list[Entry]:
        ring = [f"send {rank}->{(rank + 1) % 3}", f"recv {rank}<-{(rank - 1) % 3}"]
        turns = [entry for seq in (1, 2, 3) for entry in batch(seq, seq * 100, seq * 100 + 50, *ring)]
        return [*turns, Entry("broadcast" if rank == 1 else "all_reduce", 1, 500)]

    write_open(tmp_path, {rank: made(rank) for rank in range(3)})
    assert verdict(tmp_path) == ("mismatched-op", (1,))
    assert [finding.kind for finding in explain(tmp_path).findings] == ["mismatched-op"]


def test_groups_in_another_order_are_found_among_open_ops_alone(tmp_path: Path) -> None:
    """Rank 0 never gets to its op of group 1, and none is left there of the ops before."""
    one, other = Entry("all_reduce", 6, 600, group="1"), Entry("all_reduce", 6, 601)
    before = [*steps(5), *(Entry("all_reduce", seq, 500 + seq, 550, group="1") for seq in range(1, 6))]
    ranks = {rank: [*before, *((other, one) if rank == 0 else (one, other))] for rank in range(3)}
    write_open(tmp_path, ranks, {"1": range(3)})
    assert verdict(tmp_path) == ("cross-group-deadlock", (0,))


def test_of_a_running_job_open_sends_say_nothing_if_what_is_over_is_left_out(tmp_path: Path) -> None:
    """Rank 1 was dumped later, when its receive was over."""
    ops = [*steps(5), Entry("send 0->1", 1, 600)], [*steps(5), Entry("recv 1<-0", 1, 600, 3500)]
    write_open(tmp_path, dict(enumerate(ops)), after_s=4)
    assert (explain(tmp_path).outcome, blamed(tmp_path)) == ("running", [])


def test_ranks_whose_ops_are_all_in_flight_or_overwritten_are_no_error(tmp_path: Path) -> None:
    """What began after the first dump was written is left out: here, all that rank 1 still has."""
    young = [Entry("all_reduce", 31, 3200), Entry("all_reduce", 32, 3201)]
    write(tmp_path, {0: steps(30), 1: young}, after_s=3.1, first_ids={1: 30})
    set_time(tmp_path / "nccl_trace_rank_1", 3.3)
    assert (explain(tmp_path).outcome, blamed(tmp_path)) == ("running", [])


def test_the_gpu_that_never_began_an_op_is_named(tmp_path: Path) -> None:
    """With TORCH_NCCL_ENABLE_TIMING=1, dumps tell on which GPUs an op has begun."""
    for rank in range(4):
        data = content([*steps(5), Entry("all_reduce", 6, 600)], {"0": range(4)})
        data["entries"][-1]["state"] = "scheduled" if rank == 2 else "started"
        (tmp_path / f"rank{rank}.json").write_bytes(as_json(data))
        set_time(tmp_path / f"rank{rank}.json", 600)
    found = explain(tmp_path).verdict
    assert found is not None
    assert (found.kind, found.ranks) == ("stuck-on-device", (2,))
    assert "the GPU of rank 2 has not begun it, and those of the others have" in found.message


def test_the_rank_that_left_out_an_exchange_of_a_ring_is_named(tmp_path: Path) -> None:
    """Rank 1's last send is over, but the receive of it waits with the rest of its batch for rank 3."""

    def turn(rank: int, seq: int, done_ms: float) -> list[Entry]:
        return batch(seq, seq * 100, done_ms, f"send {rank}->{(rank + 1) % 5}", f"recv {rank}<-{(rank - 1) % 5}")

    last = Entry("all_reduce", 1, 400)
    ranks = {rank: [*turn(rank, 1, 150), *turn(rank, 2, 0 if rank in (2, 4) else 250), last] for rank in range(5)}
    ranks[3] = [*turn(3, 1, 150), last]
    write(tmp_path, ranks)
    found = explain(tmp_path).verdict
    assert found is not None
    assert (found.kind, found.ranks) == ("p2p-against-collective", (3,))
    assert found.message.endswith("while rank 2 in send at train.py:7, rank 4 in recv at train.py:7 for rank 3")


@pytest.mark.parametrize("is_over_elsewhere", [True, False])
def test_a_device_is_not_blamed_if_the_op_that_holds_it_up_may_be_overwritten(
    tmp_path: Path, is_over_elsewhere: bool
) -> None:
    """Both recorders have only ops that are queued behind a lost one; unless the call before is known to be over."""
    waiting = [Entry("all_reduce", seq, seq * 100) for seq in range(6, 30)]
    ranks = {0: waiting, 1: [Entry("all_reduce", 5, 500, 560), *waiting] if is_over_elsewhere else waiting}
    write(tmp_path, ranks, first_ids={0: 5, 1: 4 if is_over_elsewhere else 5})
    kinds = [finding.kind for finding in explain(tmp_path).findings]
    assert kinds == (["stuck-on-device"] if is_over_elsewhere else [])


def test_a_message_beside_one_that_does_not_fit_is_not_stuck_on_the_device(tmp_path: Path) -> None:
    """nccl ends the sends and receives of a batch together."""
    ranks = {
        rank: batch(1, 100, 0, f"send {rank}->{(rank + 1) % 3}", f"recv {rank}<-{(rank - 1) % 3}") for rank in range(3)
    }
    first = ranks[2][0]
    ranks[2][0] = Entry(first.name, first.seq, first.created_ms, shape=(9,))
    write(tmp_path, ranks)
    assert [finding.kind for finding in explain(tmp_path).findings] == ["p2p-size"]
