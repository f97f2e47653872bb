"""The ring file: what is written is read, whatever happens to the file."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollcall.errors import UsageError
from rollcall.explain.load import load
from rollcall.explain.rings import read
from rollcall.explain.verdict import explain, to_json
from rollcall.record import ring_format
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


def test_the_newest_can_be_read_alone(tmp_path: Path, language: str) -> None:
    """Also where they lie around the end of the ring."""
    path = make(tmp_path, 50, language)
    assert [read(path, newest).records["seq"].tolist() for newest in (3, 15, 100)] == [
        list(range(first, 51)) for first in (48, 36, 31)
    ]
    assert read(path, 3).header.count == 50


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda data: data[:100], "it is cut off within its header"),
        (lambda data: b"\x7fELF" + data[4:], "it is not a ring of rollcall"),
        (
            lambda data: data[:8] + struct.pack("<I", 99) + data[12:],
            "its format is version 99, and this rollcall reads version 2: use the rollcall that recorded it",
        ),
        (lambda data: b"", "it is cut off within its header"),
        (
            lambda data: data[:16] + struct.pack("<i", 1 << 30) + data[20:],
            "its header does not fit together",
        ),  # its rank
    ],
)
def test_what_is_no_ring_is_named(tmp_path: Path, damage: object, sentence: str) -> None:
    """The others are read; of this one it is said what is wrong."""
    path = make(tmp_path, 3)
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    run = load(tmp_path)
    assert run.ranks == {}
    assert any(sentence in problem for problem in run.problems)
    with pytest.raises(UsageError, match=f"has no ring that can be read: rank-0.ring: {sentence}"):
        explain(tmp_path)


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
    assert (folded.rank, folded.group, folded.op, folded.count) == (0, "0", "all_reduce", 30)
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
