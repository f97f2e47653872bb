"""Dumps of torch's Flight Recorder are explained like rings."""

import bz2
import contextlib
import gzip
import json
import lzma
import os
import pickle
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollcall.errors import UsageError
from rollcall.explain.compare.comparison import calls_in_words, compare
from rollcall.explain.dumps import plain
from rollcall.explain.evidence import Evidence
from rollcall.explain.loading.load import load
from rollcall.explain.terminal import nothing_found
from rollcall.explain.verdict import Explanation, explain
from tests.report.rings import FakeOp
from tests.report.rings import write as write_rings

from .dump_files import Entry, as_json, content, set_time, write


def steps(count: int, *, late_ms: float = 0, **more: object) -> list[Entry]:
    """So many all_reduces that ended, 100 ms apart."""
    return [
        Entry("all_reduce", seq, seq * 100 + late_ms, seq * 100 + 60, **more)  # type: ignore[arg-type]
        for seq in range(1, count + 1)
    ]


def verdict(folder: Path) -> tuple[str, tuple[int, ...]]:
    found = explain(folder).verdict
    assert found is not None
    return found.kind, found.ranks


def blamed(folder: Path) -> list[str]:
    return [finding.message for finding in explain(folder).findings]


def test_a_job_in_which_all_ops_are_over_is_not_blamed(tmp_path: Path) -> None:
    write(tmp_path, {rank: steps(20) for rank in range(4)})
    told = explain(tmp_path)
    assert (told.findings, told.outcome, told.run.world_size) == ([], "unknown", 4)


def test_a_rank_that_never_made_the_call_is_named_with_its_line(tmp_path: Path) -> None:
    waiting = [*steps(5), Entry("all_reduce", 6, 600, line=12)]
    write(tmp_path, {0: waiting, 1: waiting, 2: steps(5), 3: waiting})
    found = explain(tmp_path).verdict
    assert found is not None
    assert (found.kind, found.ranks, [str(site) for site in found.sites]) == ("missing-rank", (2,), ["train.py:12"])
    assert "ranks 0-1,3 wait in all_reduce at train.py:12; rank 2 never made this call" in found.message


def test_ops_that_are_only_queued_do_not_hide_the_one_that_is_stuck(tmp_path: Path) -> None:
    """nccl's ops are queued: a rank asks for many more while the first waits on the device."""
    queued = [*steps(5), Entry("all_reduce", 6, 600, line=12), *(Entry("all_reduce", n, 600 + n) for n in range(7, 50))]
    write(tmp_path, {0: queued, 1: steps(5)})
    found = explain(tmp_path).verdict
    assert found is not None
    assert (found.kind, found.seq, found.ranks) == ("missing-rank", 6, (1,))


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"name": "broadcast", "line": 30}, "mismatched-op"),
        ({"shape": (999,)}, "mismatched-shape"),
        ({"dtype": "Half"}, "mismatched-dtype"),
    ],
)
def test_a_call_that_differs_on_one_rank_is_named(tmp_path: Path, change: dict[str, object], kind: str) -> None:
    call = Entry("all_reduce", 6, 600)
    write(tmp_path, {rank: [*steps(5), replace(call, **change) if rank == 2 else call] for rank in range(4)})  # type: ignore[arg-type]
    assert verdict(tmp_path) == (kind, (2,))


def test_an_op_that_all_asked_for_and_nobody_finished_is_stuck_on_the_device(tmp_path: Path) -> None:
    write(tmp_path, {rank: [*steps(5), Entry("all_reduce", 6, 600, line=12)] for rank in range(4)})
    found = explain(tmp_path).verdict
    assert found is not None
    assert (found.kind, found.ranks) == ("stuck-on-device", (0, 1, 2, 3))
    said = "all 4 ranks of group 0 asked for all_reduce at train.py:12, call 6, and it has not completed on any of them"
    assert said in found.message


def test_an_op_that_is_over_on_some_ranks_only_is_stuck_on_the_others(tmp_path: Path) -> None:
    ends = {rank: Entry("all_reduce", 6, 600, 0 if rank == 3 else 700) for rank in range(4)}
    write(tmp_path, {rank: [*steps(5), ends[rank]] for rank in range(4)})
    assert verdict(tmp_path) == ("stuck-on-device", (3,))


def test_two_groups_in_another_order_on_one_rank_are_a_deadlock_on_the_device(tmp_path: Path) -> None:
    """All ranks asked for both ops, but their devices began with different ones."""
    one, other = Entry("all_reduce", 1, 600, group="1", line=12), Entry("all_reduce", 1, 601, group="2", line=13)
    swapped = [replace(other, created_ms=600), replace(one, created_ms=601)]
    ranks = {rank: [*steps(5), *(swapped if rank == 3 else [one, other])] for rank in range(4)}
    write(tmp_path, ranks, {"1": range(4), "2": range(4)})
    assert verdict(tmp_path) == ("cross-group-deadlock", (3,))


def test_ranks_without_a_dump_are_named_if_the_others_wait_for_them(tmp_path: Path) -> None:
    waiting = [*steps(5), Entry("all_reduce", 6, 600)]
    write(tmp_path, {0: waiting, 1: waiting, 3: waiting}, world_size=4)
    told = explain(tmp_path)
    assert told.verdict is not None
    assert (told.verdict.kind, told.verdict.ranks) == ("missing-rank", (2,))
    assert "of rank 2 there is no dump: it ended" in told.verdict.message
    assert any("no dump of rank 2" in problem for problem in told.run.problems)


def test_only_the_root_of_a_scatter_or_gather_has_a_list(tmp_path: Path) -> None:
    """nccl has the list of a scatter among its outputs, and an undefined tensor on the other ranks; gloo has it among
    the inputs, as several tensors or as one, and nothing elsewhere."""
    for rank in range(3):
        data = content([Entry(op, n, n * 100, n * 100 + 50) for n, op in enumerate(("scatter", "gather"), 1)], {})
        for entry in data["entries"]:
            is_root = rank == 1
            entry["output_sizes"] = [[1000]] * 3 if is_root else [[0]]
            entry["output_dtypes"] = ["Float"] * 3 if is_root else ["Undefined"]
        gloo = {**data["entries"][0], "record_id": 2, "collective_seq_id": 3, "profiling_name": "gloo:scatter"}
        gloo |= {"input_sizes": [[1000]] * 3 * is_root, "input_dtypes": ["Float"] * 3 * is_root}
        gloo |= {"output_sizes": [[1000]], "output_dtypes": ["Float"]}
        joined = gloo | {"record_id": 3, "collective_seq_id": 4, "input_sizes": [[3, 1000]] * is_root}
        data["entries"] += [gloo, joined | {"input_dtypes": ["Float"] * is_root}]
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(data, protocol=2))
    assert blamed(tmp_path) == []


def test_what_is_queued_behind_a_receive_has_not_begun(tmp_path: Path) -> None:
    """Rank 1 has left out a call, and waits for what rank 0 sends after it. Its next call is queued behind that."""
    late = [Entry("recv 1<-0", 1, 1100), Entry("all_reduce", 11, 1101)]
    write(tmp_path, {0: [*steps(10), Entry("all_reduce", 11, 1100)], 1: [*steps(10), *late]})
    assert verdict(tmp_path) == ("p2p-against-collective", (0, 1))


def test_two_sends_that_hold_up_each_others_receives_are_a_deadlock(tmp_path: Path) -> None:
    """The receives have been asked for, but the GPUs do them after the sends."""
    both = {
        rank: [*steps(3), Entry(f"send {rank}->{1 - rank}", 1, 400), Entry(f"recv {rank}<-{1 - rank}", 2, 401)]
        for rank in (0, 1)
    }
    write(tmp_path, both)
    assert verdict(tmp_path) == ("p2p-deadlock", (0, 1))


def test_ranks_that_wait_for_one_that_is_stuck_on_its_device_are_not_blamed(tmp_path: Path) -> None:
    """Rank 2 waits since longer, in another group, for rank 1."""
    stuck = [*steps(3), Entry("all_reduce", 1, 450, group="1")]
    waiting = [*steps(3), Entry("all_reduce", 1, 400, group="2")]
    write(tmp_path, {0: stuck, 1: stuck, 2: waiting}, {"1": (0, 1), "2": (1, 2)})
    assert verdict(tmp_path) == ("stuck-on-device", (0, 1))


def test_ranks_that_wait_for_one_without_a_dump_are_not_blamed(tmp_path: Path) -> None:
    """Rank 2 waits since longer for rank 1, which waits for rank 3."""
    stuck = [*steps(3), Entry("all_reduce", 1, 450, group="1")]
    waiting = [*steps(3), Entry("all_reduce", 1, 400, group="2")]
    write(tmp_path, {0: stuck, 1: stuck, 2: waiting}, {"1": (0, 1, 3), "2": (1, 2)}, world_size=4)
    assert verdict(tmp_path) == ("missing-rank", (3,))


def test_an_order_is_told_without_lines(tmp_path: Path) -> None:
    made = [Entry("all_reduce", 1, 100), Entry("broadcast", 2, 101)]
    swapped = [Entry("broadcast", 1, 100), Entry("all_reduce", 2, 101)]
    for rank in range(3):
        data = content(swapped if rank == 2 else made, {"0": range(3)})
        (tmp_path / f"trace.2026-11-18.rank{rank}").write_bytes(as_json(data))  # JSON, by its content
        set_time(tmp_path / f"trace.2026-11-18.rank{rank}", 600)
    assert verdict(tmp_path) == ("order-swap", (2,))


def test_sends_and_receives_are_matched_by_ranks_of_the_world(tmp_path: Path) -> None:
    """A name such as `send 0->1` has the ranks of the group."""
    groups = {"1": [1, 3]}
    send = Entry("send 0->1", 1, 600, 650, group="1")
    recvs = [Entry("recv 1<-0", 1, 600, 650, group="1"), Entry("recv 1<-0", 2, 700, group="1", line=12)]
    write(tmp_path, {0: steps(5), 1: [*steps(5), send], 2: steps(5), 3: [*steps(5), *recvs]}, groups)
    found = explain(tmp_path).verdict
    assert found is not None
    assert (found.kind, found.ranks) == ("unmatched-recv", (3,))
    assert "rank 3 waits in recv at train.py:12 for rank 1" in found.message


def test_a_hang_lasts_until_the_dumps_were_written(tmp_path: Path) -> None:
    waiting = [*steps(5), Entry("all_reduce", 6, 600)]
    write(tmp_path, {0: waiting, 1: steps(5)}, after_s=600)
    assert explain(tmp_path).waits.run_s == pytest.approx(600, rel=0.01)


def test_files_that_were_copied_later_do_not_make_a_hang_longer(tmp_path: Path) -> None:
    """Their time is that of the copy: an op that is given up after ten minutes did not wait for days."""
    waiting = [*steps(5), Entry("all_reduce", 6, 600)]
    write(tmp_path, {0: waiting, 1: steps(5)}, after_s=500_000)
    assert 600 <= explain(tmp_path).waits.run_s <= 700


def batch(seq: int, created_ms: float, done_ms: float, *names: str) -> list[Entry]:
    """A batch of sends and receives: only the entry at its end has a state."""
    ops = [Entry(name, seq, created_ms) for name in names]
    return [*ops, Entry("coalesced", seq, created_ms, done_ms, is_p2p=True)]


def test_a_batch_of_sends_and_receives_is_over_when_its_last_entry_says_so(tmp_path: Path) -> None:
    ring = {
        rank: batch(1, 100, 150, f"send {rank}->{(rank + 1) % 4}", f"recv {rank}<-{(rank - 1) % 4}")
        for rank in range(4)
    }
    write(tmp_path, ring)
    assert blamed(tmp_path) == []


def test_sends_and_receives_are_counted_by_channel_and_not_as_torch_does(tmp_path: Path) -> None:
    """torch counts all of a group together, and those of a batch as one: here the sides have other numbers."""
    ranks = {
        0: [*batch(1, 100, 150, "send 0->1", "send 0->1", "send 0->2"), *batch(2, 200, 250, "send 0->1")],
        1: [Entry("recv 1<-0", 5, 100, 150), Entry("recv 1<-0", 6, 110, 150), Entry("recv 1<-0", 7, 200, 250)],
        2: [Entry("recv 2<-0", 9, 100, 150), Entry("recv 2<-0", 10, 300, line=12)],
    }
    write(tmp_path, ranks)
    told = explain(tmp_path)
    assert told.verdict is not None
    assert (told.verdict.kind, told.verdict.ranks) == ("unmatched-recv", (2,))
    sends, recvs = Evidence(told.run).pairs.matched()
    assert len(sends) == len(recvs) == 4


def test_several_collectives_of_a_batch_are_one_call(tmp_path: Path) -> None:
    """nccl makes broadcasts of an all_gather whose sizes differ; they share one number."""
    parts = [Entry("_broadcast_oop", 6, 600, shape=(size,)) for size in (10, 20)]
    ended = [*parts, Entry("ALLGATHER_coalesced", 6, 600, 650)]
    write(tmp_path, {rank: [*steps(5), *ended, Entry("barrier", 7, 700, 750)] for rank in range(2)})
    told = explain(tmp_path)
    assert [op.op for op in told.run.ranks[0].ops[-2:]] == ["all_gather", "barrier"]
    assert told.findings == []


def test_of_a_batch_that_does_not_end_the_rank_with_fewer_collectives_is_named(tmp_path: Path) -> None:
    def part(*sizes: int) -> list[Entry]:
        return [*(Entry("all_reduce", 6, 600, shape=(size,)) for size in sizes), Entry("coalesced", 6, 601)]

    whole = [*steps(5), *part(10, 20, 30)]
    write(tmp_path / "bad", {0: whole, 1: [*steps(5), *part(10, 20)], 2: whole})
    assert verdict(tmp_path / "bad") == ("mismatched-shape", (1,))
    write(tmp_path / "good", {0: whole, 1: [*steps(5), *part(20, 30)][5:], 2: whole}, first_ids={1: 6})
    assert verdict(tmp_path / "good")[0] == "stuck-on-device"  # rank 1 no longer has the first of them


def test_what_became_of_a_batch_is_not_taken_for_overwritten(tmp_path: Path) -> None:
    ended = [*(Entry("all_reduce", 1, 100, shape=(n,)) for n in (10, 20)), Entry("coalesced", 1, 101, 150)]
    write(tmp_path / "all", dict.fromkeys(range(2), ended))
    assert not any("kept" in problem for problem in explain(tmp_path / "all").run.problems)
    write(tmp_path / "some", {rank: steps(5)[2:] for rank in range(2)}, first_ids={0: 2, 1: 2})
    problems = explain(tmp_path / "some").run.problems
    assert "ranks 0-1 kept their last 3 ops of 5: TORCH_FR_BUFFER_SIZE keeps more" in problems


def test_a_batch_that_waits_for_a_rank_is_not_stuck_on_the_device(tmp_path: Path) -> None:
    """nccl ends the ops of a batch together: also those whose partner is there wait for rank 2."""

    def turn(rank: int, seq: int, done_ms: float) -> list[Entry]:
        return batch(seq, seq * 100, done_ms, f"send {rank}->{(rank + 1) % 4}", f"recv {rank}<-{(rank - 1) % 4}")

    ring = {rank: [*turn(rank, 1, 150), *(turn(rank, 2, 0) if rank != 2 else [])] for rank in range(4)}
    write(tmp_path / "ring", ring)
    assert "stuck-on-device" not in [finding.kind for finding in explain(tmp_path / "ring").findings]
    write(tmp_path / "whole", {rank: [*turn(rank, 1, 150), *turn(rank, 2, 0)] for rank in range(4)})
    assert verdict(tmp_path / "whole")[0] == "stuck-on-device"


def test_a_send_and_receive_of_which_one_side_was_overwritten_are_no_finding(tmp_path: Path) -> None:
    """The recorder keeps the newest: rank 0 has lost the first ten of its sends."""
    sends = [Entry("send 0->1", n, n * 10, n * 10 + 5) for n in range(1, 31)]
    recvs = [Entry("recv 1<-0", n, n * 10, n * 10 + 5) for n in range(1, 31)]
    write(tmp_path, {0: sends[10:], 1: recvs}, first_ids={0: 10})
    assert blamed(tmp_path) == []


def test_calls_that_were_overwritten_on_some_ranks_are_not_missing(tmp_path: Path) -> None:
    everyone = [*steps(30), Entry("all_reduce", 31, 3100)]
    write(tmp_path, {0: everyone[25:], 1: everyone, 2: steps(30)}, first_ids={0: 25})
    assert verdict(tmp_path) == ("missing-rank", (2,))
    assert explain(tmp_path).run.ranks[0].dropped == 25


def test_calls_from_before_the_recorder_was_reset_are_not_missing(tmp_path: Path) -> None:
    """A reset begins the numbers of records anew, but not those of calls."""
    everyone = [*steps(30), Entry("all_reduce", 31, 3100)]
    write(tmp_path, {0: everyone[25:], 1: everyone, 2: steps(30)})
    assert verdict(tmp_path) == ("missing-rank", (2,))


def test_gloo_tells_the_end_of_an_op_by_retiring_it(tmp_path: Path) -> None:
    done = [Entry("all_reduce", n, n * 100, n * 100 + 1, backend="gloo") for n in range(1, 6)]
    waits = Entry("all_reduce", 6, 600, backend="gloo", line=12)
    write(tmp_path, {0: [*done, waits], 1: done, 2: [*done, waits]})
    told = explain(tmp_path)
    assert told.verdict is not None
    assert (told.verdict.kind, told.verdict.ranks) == ("missing-rank", (1,))
    assert any("do not tell when ops ended" in problem for problem in told.run.problems)


def test_a_collective_of_gloo_that_ended_without_a_rank_has_failed(tmp_path: Path) -> None:
    """Gloo retires an op that timed out, too."""
    done = [Entry("all_reduce", n, n * 100, n * 100 + 1, backend="gloo") for n in range(1, 6)]
    failed = Entry("all_reduce", 6, 600, 5600, backend="gloo", line=12)
    write(tmp_path, {0: [*done, failed], 1: done, 2: [*done, failed]})
    assert verdict(tmp_path) == ("missing-rank", (1,))


def test_dumps_of_gloo_beside_those_of_nccl_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, {rank: steps(5) for rank in range(2)})
    write(tmp_path, {rank: steps(7, backend="gloo") for rank in range(2)}, prefix="gloo_trace_rank_")
    told = explain(tmp_path)
    assert {op.signature["device"] for op in told.run.ranks[0].ops} == {"cuda"}
    assert any("dumps of gloo are left out" in problem for problem in told.run.problems)


def test_groups_without_ranks_have_the_ranks_that_used_them(tmp_path: Path) -> None:
    """Gloo before torch 2.15 writes no members."""
    for rank in range(3):
        mine = [Entry("all_reduce", 1, 100, 101, backend="gloo")]
        mine += [Entry("all_reduce", 1, 200, 201, backend="gloo", group="1")] if rank < 2 else []
        data = content(mine, {}) | {"pg_config": {"": {"name": "", "desc": "", "ranks": "[]"}}}
        (tmp_path / f"trace_{rank}").write_bytes(pickle.dumps(data, protocol=2))
    groups = {group.name: group.ranks for group in explain(tmp_path).run.table.names.groups[1:]}
    assert groups == {"0": (0, 1, 2), "1": (0, 1)}


def test_a_late_rank_is_a_straggler_although_torch_notices_ends_late(tmp_path: Path) -> None:
    """Each rank notices the end of a call up to 100 ms later than the others; that is no wait."""
    ranks = {
        rank: [
            Entry("all_reduce", n, n * 1000 + (600 if rank == 1 else 0), n * 1000 + 700 + 30 * rank) for n in range(9)
        ]
        for rank in range(3)
    }
    write(tmp_path, ranks)
    assert verdict(tmp_path) == ("straggler", (1,))
    waits = explain(tmp_path).waits
    assert waits.caused_s[1] == pytest.approx(2 * 9 * 0.6, rel=0.02)
    assert waits.caused_s[0] == waits.caused_s[2] == 0


def test_the_times_of_devices_count_also_if_the_first_op_has_none(tmp_path: Path) -> None:
    """torch writes no duration of the sends and receives of a batch, and of what is not over."""
    first = {0: "send 0->1", 1: "recv 1<-0"}
    ranks = {
        rank: [
            Entry(first[rank], 1, 5, 20),
            *(Entry("all_reduce", n, n * 100, n * 100 + 80, took_ms=2 if rank == 1 else 60) for n in range(1, 31)),
        ]
        for rank in first
    }
    write(tmp_path, ranks)
    assert verdict(tmp_path) == ("straggler", (1,))


def test_queued_ops_are_not_counted_as_waits_on_top_of_each_other(tmp_path: Path) -> None:
    """A rank that asks for 50 ops at once does not wait 50 times for the rank that comes a second later."""
    early = [Entry("all_reduce", n, n, 1100 + n) for n in range(50)]
    late = [Entry("all_reduce", n, 1000 + n, 1100 + n) for n in range(50)]
    write(tmp_path, {0: early, 1: late})
    assert explain(tmp_path).waits.caused_s[1] == pytest.approx(1.0, rel=0.05)


def test_ops_in_flight_when_a_running_job_was_dumped_are_no_finding(tmp_path: Path) -> None:
    """Rank 1 was dumped 50 ms after rank 0, and has made two calls more since."""
    write(tmp_path, {0: steps(10), 1: [*steps(11), Entry("all_reduce", 12, 1200)]}, after_s=1.22)
    set_time(tmp_path / "nccl_trace_rank_0", 1.06)
    assert (blamed(tmp_path), explain(tmp_path).outcome) == ([], "running")


def test_a_rank_that_is_a_moment_late_in_a_running_job_is_no_finding(tmp_path: Path) -> None:
    write(tmp_path, {0: [*steps(10), Entry("all_reduce", 11, 1100)], 1: steps(10)}, after_s=1.2)
    assert (blamed(tmp_path), explain(tmp_path).outcome) == ([], "running")


def test_sends_in_flight_when_a_running_pipeline_was_dumped_are_no_finding(tmp_path: Path) -> None:
    """Rank 0 has sent something for which rank 1 has not asked yet; rank 1 got one more than rank 0 knew of."""
    sends = [Entry("send 0->1", n, n * 100, n * 100 + 30) for n in range(1, 11)]
    recvs = [Entry("recv 1<-0", n, n * 100, n * 100 + 30) for n in range(1, 12)]
    write(tmp_path, {0: [*sends, Entry("send 0->1", 11, 1100), Entry("send 0->1", 12, 1150)], 1: recvs}, after_s=1.2)
    assert (blamed(tmp_path), explain(tmp_path).outcome) == ([], "running")


def test_a_rank_that_is_seconds_late_is_named_before_the_timeout(tmp_path: Path) -> None:
    write(tmp_path, {0: [*steps(10), Entry("all_reduce", 11, 1100)], 1: steps(10)}, after_s=10)
    assert verdict(tmp_path) == ("missing-rank", (1,))


def test_json_tells_the_same_without_lines(tmp_path: Path) -> None:
    for rank in range(3):
        mine = [*steps(5), *([] if rank == 1 else [Entry("all_reduce", 6, 600)])]
        (tmp_path / f"dump.rank{rank}.json").write_bytes(as_json(content(mine, {"0": range(3)})))
        set_time(tmp_path / f"dump.rank{rank}.json", 600)
    told = explain(tmp_path)
    assert told.verdict is not None
    assert (told.verdict.kind, told.verdict.ranks, told.verdict.sites) == ("missing-rank", (1,), ())
    assert any("no stacks" in problem for problem in told.run.problems)


@pytest.mark.parametrize("prefix", ["nccl_trace_rank_", "comm_lib_trace_rank_", "trace-", "job7.rank", "", "a/b/rank_"])
def test_the_rank_is_read_from_names_of_any_prefix(tmp_path: Path, prefix: str) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    write(tmp_path, {rank: steps(3) for rank in range(12)}, prefix=prefix)
    assert sorted(explain(tmp_path).run.ranks) == list(range(12))


def test_a_file_without_number_is_of_the_one_rank_that_is_in_all_its_groups(tmp_path: Path) -> None:
    write(tmp_path, {rank: steps(3) for rank in range(4)}, {"1": [0, 1], "2": [2, 3], "3": [0, 2], "4": [1, 3]})
    (tmp_path / "nccl_trace_rank_2").rename(tmp_path / "dump")
    assert sorted(explain(tmp_path).run.ranks) == [0, 1, 2, 3]


def test_a_pickle_and_json_of_one_process_are_one_dump(tmp_path: Path) -> None:
    write(tmp_path, {rank: steps(3) for rank in range(2)})
    data = pickle.loads((tmp_path / "nccl_trace_rank_0").read_bytes())
    (tmp_path / "nccl_trace_rank_0.json").write_bytes(as_json(data))
    told = explain(tmp_path)
    assert len(told.run.ranks) == 2
    assert told.run.ranks[0].ops[0].site is not None


def test_a_file_that_is_cut_off_is_left_out_and_its_rank_not_blamed(tmp_path: Path) -> None:
    write(tmp_path, {rank: [*steps(5), Entry("all_reduce", 6, 600)] for rank in range(3)})
    whole = (tmp_path / "nccl_trace_rank_1").read_bytes()
    (tmp_path / "nccl_trace_rank_1").write_bytes(whole[: len(whole) // 2])
    told = explain(tmp_path)
    assert "nccl_trace_rank_1: it is cut off" in told.run.problems
    assert sorted(told.run.ranks) == [0, 2]


def test_other_files_beside_the_dumps_do_not_matter(tmp_path: Path) -> None:
    write(tmp_path, {rank: steps(3) for rank in range(2)})
    (tmp_path / "train.log").write_text("step 1\n")
    (tmp_path / "config.json").write_text('{"lr": 0.1}')
    assert not any("config" in problem for problem in explain(tmp_path).run.problems)


def test_a_pickle_with_code_is_refused_and_not_run(tmp_path: Path) -> None:
    marker = tmp_path / "ran"

    class Touch:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(marker),)

    write(tmp_path / "d", {0: steps(3)}, world_size=2)
    (tmp_path / "d" / "nccl_trace_rank_1").write_bytes(pickle.dumps({"entries": [Touch()]}, protocol=2))
    told = explain(tmp_path / "d")
    assert "nccl_trace_rank_1: it is not plain data: it names posix.mkdir" in told.run.problems
    assert not marker.exists()
    shutil.rmtree(tmp_path / "d")
    write(tmp_path / "d", {})
    (tmp_path / "d" / "nccl_trace_rank_0").write_bytes(pickle.dumps(Touch(), protocol=4))
    with pytest.raises(UsageError, match=r"no dump of .* can be read: nccl_trace_rank_0: it is not plain data"):
        explain(tmp_path / "d")
    assert not marker.exists()


@pytest.mark.parametrize("protocol", range(2, 6))
def test_plain_data_of_any_protocol_is_read(protocol: int) -> None:
    data = {"entries": [{"a": (1, 2.5, None, True, "x")}], "version": "2.10"}
    assert plain.loads(pickle.dumps(data, protocol)) == data


def test_dumps_of_two_worlds_are_refused(tmp_path: Path) -> None:
    write(tmp_path, {rank: steps(3) for rank in (0, 1)}, world_size=2)
    write(tmp_path, {rank: steps(3) for rank in (2, 3)}, world_size=4)
    message = r"more than one job: nccl_trace_rank_0 has a world of 2 ranks, nccl_trace_rank_2 has a world of 4 ranks"
    with pytest.raises(UsageError, match=message):
        explain(tmp_path)


def test_two_dumps_of_a_rank_of_different_jobs_are_refused(tmp_path: Path) -> None:
    write(tmp_path, {rank: steps(3) for rank in range(2)})
    write(tmp_path, {1: steps(3, late_ms=7)}, world_size=2, prefix="old_rank_")
    with pytest.raises(UsageError, match="nccl_trace_rank_1 and old_rank_1 are both of rank 1, and differ"):
        explain(tmp_path)


def test_the_same_calls_hours_apart_are_of_two_jobs(tmp_path: Path) -> None:
    yesterday = steps(5)
    today = [replace(e, created_ms=e.created_ms + 8e7, done_ms=e.done_ms + 8e7) for e in yesterday]
    write(tmp_path, {0: yesterday, 1: today})
    with pytest.raises(UsageError, match=r"the same call lies 22.2 h apart in nccl_trace_rank_0 and nccl_trace_rank_1"):
        explain(tmp_path)


def test_an_empty_folder_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="neither the folder of a run, nor one of rings or of Flight Recorder dumps"):
        explain(tmp_path)


def test_a_run_without_rings_is_not_taken_for_dumps(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"outcome": "ok"}')
    (tmp_path / "metrics-rank-0.json").write_text('{"loss": 1}')
    with pytest.raises(UsageError, match="it ran with --no-record"):
        explain(tmp_path)


def test_an_empty_dump_is_named(tmp_path: Path) -> None:
    write(tmp_path, {0: steps(3)}, world_size=2)
    (tmp_path / "nccl_trace_rank_1").write_bytes(b"")
    assert "nccl_trace_rank_1: it is empty" in explain(tmp_path).run.problems


@pytest.mark.parametrize(("pack", "suffix"), [(gzip.compress, ".gz"), (bz2.compress, ".bz2"), (lzma.compress, ".xz")])
def test_compressed_dumps_are_read(tmp_path: Path, pack: Callable[[bytes], bytes], suffix: str) -> None:
    waiting = [*steps(5), Entry("all_reduce", 6, 600, line=12)]
    write(tmp_path, {0: waiting, 1: steps(5)}, prefix="trace_")
    for path in list(tmp_path.iterdir()):
        path.with_name(path.name + suffix).write_bytes(pack(path.read_bytes()))
        path.unlink()
    assert verdict(tmp_path) == ("missing-rank", (1,))


@pytest.mark.parametrize("data", [gzip.compress(b"a dump" * 99, mtime=0)[:20], b"\x28\xb5\x2f\xfd of zstd"])
def test_a_dump_that_cannot_be_unpacked_is_told_as_such(tmp_path: Path, data: bytes) -> None:
    """Else it would seem that there is no dump."""
    (tmp_path / "nccl_trace_rank_0.gz").write_bytes(data)
    with pytest.raises(UsageError, match=r"nccl_trace_rank_0\.gz: it is compressed"):
        explain(tmp_path)


@pytest.mark.parametrize("prefix", ["job-7.r", "rank", "trace.v2_"])
@pytest.mark.parametrize("suffix", ["", ".txt", ".json"])
def test_json_is_known_by_its_content(tmp_path: Path, prefix: str, suffix: str) -> None:
    """The prefix of TORCH_FR_DUMP_TEMP_FILE may contain dots: what is behind them is no suffix."""
    for rank, entries in {0: [*steps(5), Entry("all_reduce", 6, 600)], 1: steps(5)}.items():
        path = tmp_path / f"{prefix}{rank}{suffix}"
        path.write_bytes(as_json(content(entries, {"0": range(2)})))
        set_time(path, 600)
    assert verdict(tmp_path) == ("missing-rank", (1,))


def test_ops_with_unknown_names_are_left_out_and_counted(tmp_path: Path) -> None:
    write(tmp_path, {rank: [*steps(3), Entry("teleport", 4, 400, 450)] for rank in range(2)})
    told = explain(tmp_path)
    assert told.findings == []
    assert any("2 ops are left out" in problem and "nccl:teleport" in problem for problem in told.run.problems)


def told_by(entries: Sequence[Entry], folder: Path) -> Explanation:
    return explain(write(folder, dict.fromkeys(range(2), entries)))


def test_it_says_what_the_recorder_cannot_tell(tmp_path: Path) -> None:
    problems = told_by(steps(3), tmp_path).run.problems
    assert any("do not tell reduce ops, roots, tags, splits" in problem for problem in problems)


REAL = Path(__file__).parent / "real_dumps"


@pytest.mark.parametrize("name", ["gloo-2.13-good", "gloo-2.13-good-json", "nccl-2.11", "nccl-2.11-json"])
def test_real_dumps_of_correct_programs_are_not_blamed(name: str) -> None:
    """Gloo's by torch 2.13 with three ranks, nccl's by torch 2.11 with one rank on an H200."""
    told = explain(REAL / name)
    assert told.findings == []
    assert {op.op for op in told.run.ranks[0].ops} >= {"all_reduce", "all_gather", "broadcast", "barrier"}


@pytest.mark.parametrize("name", ["gloo-2.13-missing", "gloo-2.13-missing-json", "gloo-2.13-cut"])
def test_real_dumps_of_a_rank_that_skips_a_barrier_name_it(name: str) -> None:
    """In one of them rank 0 was killed while it wrote its dump."""
    assert verdict(REAL / name) == ("missing-rank", (1,))


def test_a_real_dump_of_an_op_behind_a_kernel_that_does_not_end_is_stuck_on_the_device() -> None:
    """nccl wrote it when it was asked through its pipe."""
    assert verdict(REAL / "nccl-2.11-stuck") == ("stuck-on-device", (0,))


@pytest.mark.parametrize("seed", range(40))
def test_damaged_dumps_of_any_content_end_in_an_explanation_or_a_sentence(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    for path in sorted((REAL / chance.choice(["gloo-2.13-missing", "nccl-2.11", "gloo-2.13-good-json"])).iterdir()):
        data = bytearray(path.read_bytes())
        for _ in range(chance.choice([1, 5, 50])):
            data[chance.randrange(len(data))] = chance.randrange(256)
        (tmp_path / path.name).write_bytes(data)
    with contextlib.suppress(UsageError):
        explain(tmp_path)


@pytest.mark.parametrize("change", [{"seq": 1 << 40}, {"created_ms": 1e12}, {"created_ms": -1e12}, {"timeout_ms": -5}])
def test_absurd_numbers_do_not_matter(tmp_path: Path, change: dict[str, Any]) -> None:
    write(tmp_path, {0: steps(5), 1: [replace(each, **change) for each in steps(5)]})
    with contextlib.suppress(UsageError):
        explain(tmp_path)


def test_a_rank_of_many_digits_does_not_make_a_world_of_that_size(tmp_path: Path) -> None:
    write(tmp_path, {0: steps(3)})
    (tmp_path / "nccl_trace_rank_0").rename(tmp_path / "nccl_trace_rank_99999999")
    assert explain(tmp_path).run.world_size == 1


def stuck_run(folder: Path, outcome: str, ended_ms: float) -> Path:
    """A run whose ranks are in the same all_reduce according to nccl's dumps beside the rings."""
    ops = [FakeOp("all_reduce", 1, 100, 160), FakeOp("all_reduce", 2, 200, ended_ms, line=12)]
    write_rings(folder, [ops, ops])
    (folder / "run.json").write_text(json.dumps({"outcome": outcome, "attempts": [{"world_size": 2}]}))
    entries = [Entry("all_reduce", 1, 100, 160), Entry("all_reduce", 2, 200, line=12)]
    write(folder / "flight-recorder" / "attempt-0", {0: entries, 1: entries})
    return folder


def test_dumps_beside_the_rings_tell_what_the_device_has_not_finished(tmp_path: Path) -> None:
    assert verdict(stuck_run(tmp_path, "stopped", 0)) == ("stuck-on-device", (0, 1))


def test_dumps_of_an_earlier_hang_say_nothing_of_a_run_that_ended_well(tmp_path: Path) -> None:
    assert blamed(stuck_run(tmp_path, "ok", 900)) == []


@pytest.mark.parametrize(
    "name",
    ["fr_{}_20261119.pickle", "global_rank{}_local_rank0", "{}.pkl", "rank{}.node-7.pid-4711", "node_rank1_rank_{}"],
)
def test_the_rank_is_told_by_names_of_several_numbers(tmp_path: Path, name: str) -> None:
    """The last number that is a rank in the world of the dump, and not one of a host or of a rank on its host."""
    waiting = [*steps(5), Entry("all_reduce", 6, 600)]
    write(tmp_path, {0: waiting, 1: waiting, 2: steps(5, late_ms=1), 3: waiting})
    for path in sorted(tmp_path.iterdir()):
        path.rename(tmp_path / name.format(path.name[-1]))
    told = explain(tmp_path)
    assert told.verdict is not None
    assert (told.verdict.ranks, sorted(told.run.ranks)) == ((2,), [0, 1, 2, 3])


def test_many_files_with_the_same_fault_are_one_sentence(tmp_path: Path) -> None:
    write(tmp_path, dict.fromkeys(range(30), steps(3)))
    for rank in range(1, 30):
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(b"")
    faults = [problem for problem in explain(tmp_path).run.problems if "it is empty" in problem]
    assert len(faults) == 1
    assert faults[0].endswith("and 25 more files: it is empty")


def test_a_name_without_a_number_is_no_fault_of_the_content(tmp_path: Path) -> None:
    write(tmp_path, {0: steps(3), 1: steps(3)})
    for path in sorted(tmp_path.iterdir()):
        path.rename(tmp_path / f"dump-{'ab'[int(path.name[-1])]}")
    with pytest.raises(UsageError, match=r"dump-a, dump-b: its name has no number, so it is not known which rank"):
        explain(tmp_path)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("took_ms", [float("nan"), float("inf"), -1.0, 1e300])
def test_a_duration_that_is_none_is_left_out(tmp_path: Path, took_ms: float) -> None:
    write(tmp_path, {rank: steps(5, took_ms=took_ms) for rank in range(2)})
    assert blamed(tmp_path) == []


def test_dumps_without_ops_are_told_as_such(tmp_path: Path) -> None:
    """`_dump_nccl_trace(includeCollectives=False)` writes such; and a rank that made no call."""
    write(tmp_path / "none", {0: [], 1: []})
    assert nothing_found(explain(tmp_path / "none")) == "no finding: no call was recorded"
    write(tmp_path / "one", {0: steps(3)}, world_size=2)
    assert nothing_found(explain(tmp_path / "one")) == "no finding: the calls of the ranks that are here match"
    assert calls_in_words(compare(tmp_path / "none", tmp_path / "one")).endswith(
        "from all_reduce float32 [1000] at train.py:7 on"
    )


def test_the_same_in_many_groups_is_one_finding(tmp_path: Path) -> None:
    """In each row of a mesh, one rank never comes."""
    groups = {str(row + 1): range(row * 4, row * 4 + 4) for row in range(5)}
    came = {rank: rank % 4 != 3 for rank in range(20)}
    late = {rank: [Entry("all_reduce", 1, 600, group=str(rank // 4 + 1), line=30)] * came[rank] for rank in range(20)}
    write(tmp_path, {rank: [*steps(5), *late[rank]] for rank in range(20)}, groups)
    (found,) = explain(tmp_path).findings
    assert (found.kind, found.ranks) == ("missing-rank", (3, 7, 11, 15, 19))
    assert found.message.endswith(
        "rank 3 never made this call; in 4 more groups, ranks wait there for ranks 7,11,15,19"
    )


def test_large_groups_in_another_order_take_no_long_time(tmp_path: Path) -> None:
    """Each rank of one half waits for each of the other: going through all pairs one by one took minutes."""
    one, other = Entry("all_reduce", 1, 600, group="1", line=30), Entry("all_reduce", 1, 601, group="2", line=31)
    swapped = [replace(other, created_ms=600), replace(one, created_ms=601)]
    groups = {"1": range(400), "2": range(400)}
    write(tmp_path, {rank: [*steps(1), *(swapped if rank % 2 else (one, other))] for rank in range(400)}, groups)
    evidence = Evidence(load(tmp_path))
    assert len(evidence.ways_on([0])) == 400
    assert verdict(tmp_path)[0] == "cross-group-deadlock"
