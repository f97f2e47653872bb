"""The ring file: what is written is read, whatever happens to the file."""

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rollcall.agent.monitoring.hang_detector import newest_ops
from rollcall.errors import UsageError
from rollcall.explain.loading.load import Run, load
from rollcall.explain.loading.rings import read
from rollcall.explain.loading.table import Table
from rollcall.explain.matching import Pairs
from rollcall.explain.verdict import explain, to_json
from rollcall.record import ring_format
from rollcall.record.recorder import _megabytes
from rollcall.record.ring import Ring

SMALL = ring_format.RECORDS_AT + 20 * ring_format.RECORD.size


def make(folder: Path, ops: int, language: str = "python") -> Path:
    path = folder / "rings" / "attempt-0" / "rank-0.ring"
    ring = _ring_class(language)(path, rank=0, world_size=1, attempt=0, host="here", size_bytes=SMALL)
    group = ring.name("group", "g", {"name": "0", "ranks": [0]})
    site = ring.name("site", "s", [["a.py", 3, "f"]])
    for number in range(ops):
        at = ring.add(ring_format.OP["all_reduce"], group=group, site=site, size_bytes=number)
        assert ring.newest() == (number + 1, at)
        ring.completed(at)
    return path


def _ring_class(language: str) -> type[Ring]:
    if language == "python":
        return Ring
    from rollcall.record.cpp.ring import CppRing  # here: it cannot be imported where it is not compiled

    class Attached(CppRing):
        """Without a recorder: C++ asks for no names."""

        def __init__(self, path: Path, **facts: Any) -> None:
            super().__init__(path, **facts)
            self.attach(self)

    return Attached


def test_what_is_written_is_read(tmp_path: Path, language: str) -> None:
    """Records in order, with their names in place."""
    make(tmp_path, 5, language)
    (rank,) = load(tmp_path).ranks.values()
    assert [(op.seq, op.size_bytes, str(op.site), op.group.ranks) for op in rank.ops] == [
        (n + 1, n, "a.py:3", (0,)) for n in range(5)
    ]
    assert all(op.completed_ns >= op.entered_ns for op in rank.ops)


def test_the_oldest_are_overwritten(tmp_path: Path, language: str) -> None:
    """A full ring keeps the newest, and says how many it has dropped."""
    make(tmp_path, 50, language)
    (rank,) = load(tmp_path).ranks.values()
    assert [op.seq for op in rank.ops] == list(range(31, 51))
    assert rank.dropped == 30


def test_explain_says_what_a_ring_has_kept(tmp_path: Path) -> None:
    """And what keeps more."""
    make(tmp_path, 50)
    assert load(tmp_path).problems == ("rank 0 kept its last 20 ops of 50: --ring-mb keeps more",)


def test_a_ring_full_of_names_still_names_its_groups(tmp_path: Path) -> None:
    """Without its group, nothing of an op could be compared. Other names are 0 then, and explain says so."""
    path = tmp_path / "rings" / "attempt-0" / "rank-0.ring"
    ring = Ring(path, rank=0, world_size=1, attempt=0, host="here", size_bytes=1 << 20, names_bytes=1 << 12)
    sites = [ring.name("site", line, [["a.py", line, "f"]]) for line in range(200)]
    group = ring.name("group", "g", {"name": "0", "ranks": [0]})
    for site in sites:
        ring.completed(ring.add(ring_format.OP["barrier"], group=group, site=site))
    run = load(tmp_path)
    (rank,) = run.ranks.values()
    assert sites[0] > 0 == sites[-1]
    assert {op.group.ranks for op in rank.ops} == {(0,)}
    assert [str(op.site) for op in rank.ops][:2] == ["a.py:0", "a.py:1"]
    assert rank.ops[-1].site is None
    assert run.problems == (
        "rank 0 had no room for all lines and shapes: ops without them are not compared; --ring-mb makes room",
    )


def test_no_time_is_spent_on_names_that_have_no_room(tmp_path: Path) -> None:
    """Splits of all_to_all may differ with every op. Once the names are full, none is put into JSON; groups are."""
    ring = Ring(tmp_path / "rank-0.ring", rank=0, world_size=1, attempt=0, host="here", names_bytes=4096)
    assert ring.name("signature", 1, "x" * 4000) == 0
    assert ring.name("signature", 2, object()) == 0
    assert ring.name("group", "g", {"name": "0", "ranks": [0]}) == 1


def test_the_hang_detector_reads_rings_of_any_size(tmp_path: Path, language: str) -> None:
    """Where the records begin depends on the size of the names before them."""
    path = tmp_path / "rank-0.ring"
    size_bytes, names_bytes = ring_format.sizes(1)
    ring = _ring_class(language)(
        path, rank=0, world_size=1, attempt=0, host="here", size_bytes=size_bytes, names_bytes=names_bytes
    )
    ring.add(ring_format.OP["barrier"], group=ring.name("group", "g", {"name": "0", "ranks": [0]}))
    (newest,) = newest_ops(path)
    assert ring_format.RECORD.unpack(newest)[:1] == (1,)
    assert path.stat().st_size <= 1 << 20


def test_the_usual_ring_has_64_megabytes() -> None:
    """Of which names have a sixteenth; a variable says otherwise, and one that is no size is ignored."""
    assert ring_format.sizes(64) == (ring_format.DEFAULT_BYTES, ring_format.NAMES_BYTES)
    assert [_megabytes({"ROLLCALL_RING_MB": text}) for text in ("", "2", "0", "many")] == [64, 2, 64, 64]


def test_the_newest_can_be_read_alone(tmp_path: Path, language: str) -> None:
    """Also where they lie around the end of the ring."""
    path = make(tmp_path, 50, language)
    assert [read(path, newest).records["seq"].tolist() for newest in (3, 15, 100)] == [
        list(range(first, 51)) for first in (48, 36, 31)
    ]
    assert read(path, 3).header.count == 50


def exchange(folder: Path, language: str, sent: int, received: int) -> None:
    """Two rings of 20 records: rank 0 sends under two tags in turn, rank 1 receives, with barriers between."""
    for rank, op, count in ((0, "send", sent), (1, "recv", received)):
        path = folder / "rings" / "attempt-0" / f"rank-{rank}.ring"
        ring = _ring_class(language)(path, rank=rank, world_size=2, attempt=0, host="here", size_bytes=SMALL)
        group = ring.name("group", "g", {"name": "0", "ranks": [0, 1]})
        for number in range(count):
            at = ring.add(ring_format.OP[op], group=group, peer=1 - rank, tag=number % 2, size_bytes=number)
            ring.completed(at)


def sizes_of_pairs(run: Run) -> list[tuple[int, int]]:
    sends, recvs = Pairs(run).matched()
    return list(zip(run.table.size_bytes[sends].tolist(), run.table.size_bytes[recvs].tolist(), strict=True))


def test_sends_and_receives_find_each_other_in_rings_that_have_wrapped(tmp_path: Path, language: str) -> None:
    """By their number within the channel: one rank has lost more than the other."""
    exchange(tmp_path, language, 50, 43)
    run = load(tmp_path)
    assert sizes_of_pairs(run) == [(number, number) for number in range(30, 43)]
    assert len(Pairs(run).unmatched("recv")) == 0


def test_sends_and_receives_find_each_other_in_a_view_that_is_cut(tmp_path: Path, language: str) -> None:
    """As the page of a running job reads the newest records only."""
    exchange(tmp_path, language, 20, 17)
    run = load(tmp_path)
    cut = replace(run, table=Table(10))
    for rank in (0, 1):
        cut.table.add(read(tmp_path / "rings" / "attempt-0" / f"rank-{rank}.ring", 5), [])
    cut.table.close()
    assert sizes_of_pairs(cut) == [(15, 15), (16, 16)]


def test_a_receive_from_any_rank_is_numbered_when_its_sender_is_known(tmp_path: Path, language: str) -> None:
    """Then it counts in the channel of that sender."""
    path = tmp_path / "rings" / "attempt-0" / "rank-0.ring"
    ring = _ring_class(language)(path, rank=0, world_size=3, attempt=0, host="here", size_bytes=SMALL)
    group = ring.name("group", "g", {"name": "0", "ranks": [[0, 2]]})
    ring.add(ring_format.OP["recv"], group=group, peer=2, tag=5)
    at = ring.add(ring_format.OP["recv"], group=group, peer=-1, tag=5)
    ring.received_from(at, 2)
    ring.add(ring_format.OP["recv"], group=group, peer=2, tag=5)
    (rank,) = load(tmp_path).ranks.values()
    assert [(op.peer, op.seq, op.tag) for op in rank.ops] == [(2, 1, 5), (2, 2, 5), (2, 3, 5)]


def make_older(path: Path) -> None:
    """A ring as version 2 wrote it: sends and receives of all channels are counted together."""
    data = bytearray(path.read_bytes())
    data[8:12] = struct.pack("<I", 2)
    count = ring_format.NUMBER.unpack_from(data, ring_format.COUNT_AT)[0]
    for place in range(min(count, 20)):
        at = ring_format.RECORDS_AT + place * ring_format.RECORD.size
        data[at + ring_format.SEQ_AT : at + ring_format.SEQ_AT + 4] = data[at : at + 4]  # its number
    path.write_bytes(data)


@pytest.mark.parametrize(("sent", "pairs"), [(18, 15), (40, 0)])
def test_rings_of_the_former_version_are_read(tmp_path: Path, sent: int, pairs: int) -> None:
    """Their sends and receives meet in order, unless the beginning of a channel is overwritten."""
    exchange(tmp_path, "python", sent, 15)
    for path in (tmp_path / "rings" / "attempt-0").iterdir():
        make_older(path)
    run = load(tmp_path)
    assert sorted(run.ranks) == [0, 1]
    assert sizes_of_pairs(run) == [(number, number) for number in range(pairs)]
    assert len(Pairs(run).unmatched("recv")) == 0


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda data: data[:100], "it is cut off within its header"),
        (lambda data: b"\x7fELF" + data[4:], "it is not a ring of rollcall"),
        (
            lambda data: data[:8] + struct.pack("<I", 99) + data[12:],
            "its format is version 99, and this rollcall reads versions 2 and 3: use the rollcall that recorded it",
        ),
        (lambda data: b"", "it is cut off within its header"),
        (
            lambda data: data[:16] + struct.pack("<i", 1 << 30) + data[20:],
            "its header does not fit together",
        ),  # its rank
    ],
)
def test_what_is_no_ring_is_named(tmp_path: Path, damage: object, sentence: str) -> None:
    """And where no other can be read, there is nothing to explain."""
    path = make(tmp_path, 3)
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(UsageError, match=sentence):
        load(tmp_path)


def test_a_ring_cut_off_in_its_records_gives_what_it_has(tmp_path: Path) -> None:
    """Whole records before the cut count."""
    path = make(tmp_path, 10)
    end = ring_format.RECORDS_AT + 4 * ring_format.RECORD.size + 11
    path.write_bytes(path.read_bytes()[:end])
    (rank,) = load(tmp_path).ranks.values()
    assert [op.seq for op in rank.ops] == [1, 2, 3, 4]


def test_what_is_overwritten_is_summed_up(tmp_path: Path, language: str) -> None:
    """Ops that the ring has no room for any more are counted, with their bytes, per group and op."""
    make(tmp_path, 50, language)
    (folded,) = load(tmp_path).folded
    assert (folded.rank, folded.group.name, folded.op, folded.count) == (0, "0", "all_reduce", 30)
    assert folded.size_bytes == sum(range(30))


# Where damage hurts: the header, the counters, the names, the records.
PLACES = st.one_of(
    st.integers(0, 300),
    st.integers(ring_format.HEADER_BYTES, ring_format.HEADER_BYTES + 64),
    st.integers(ring_format.NAMES_AT, ring_format.NAMES_AT + 90),
    st.integers(ring_format.RECORDS_AT, ring_format.RECORDS_AT + 20 * ring_format.RECORD.size),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(PLACES, st.integers(0, 255)), max_size=40), st.integers(0, 2**13))
@example(bytes_changed=[(127, 128)], cut=0)  # the moment by the monotonic clock, which is no time that a clock can have
def test_a_damaged_file_never_breaks_the_reader(tmp_path: Path, bytes_changed: list[tuple[int, int]], cut: int) -> None:
    """Any bytes changed anywhere, and any cut: explain says what it can, or one sentence."""
    whole = tmp_path / "whole"
    path = whole if whole.exists() else make(tmp_path, 30).rename(whole)
    data = bytearray(path.read_bytes())
    for place, value in bytes_changed:
        data[place % len(data)] = value
    (tmp_path / "rings" / "attempt-0" / "rank-0.ring").write_bytes(bytes(data[: len(data) - cut]))
    try:
        printed = to_json(explain(tmp_path))
    except UsageError:
        return
    json.dumps(printed)
