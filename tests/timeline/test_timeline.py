"""What is waiting and what is communicating, from ops whose times are known."""

from pathlib import Path

import numpy as np
import pytest

from rollcall.explain.evidence import View
from rollcall.explain.load import load
from rollcall.record import ring_format
from rollcall.report import logs, matrix, traffic
from rollcall.timeline import model
from rollcall.timeline.model import Bars
from tests.report.rings import Made, write
from tests.rollcall_command import Runner


def _drawn(folder: Path) -> tuple[View, Bars]:
    view = View(load(folder))
    return view, model.draw(view)


def _ms(values: np.ndarray) -> list[float]:
    return [round(float(value) / 1e6, 3) for value in values]


def test_everyone_waits_for_the_last(tmp_path: Path) -> None:
    """In a collective a rank waits until the last has come, and communicates from then on."""
    write(tmp_path, [[Made("all_reduce", 1, 0, 40)], [Made("all_reduce", 1, 30, 41)], [Made("all_reduce", 1, 10, 40)]])
    view, bars = _drawn(tmp_path)
    assert _ms(bars.wait_ns) == [30, 0, 20]
    assert _ms(bars.busy_ns) == [10, 11, 10]
    assert bars.last_rank.tolist() == [1, 1, 1]
    assert len(set(bars.call.tolist())) == 1
    found = matrix.count(view, bars, int(bars.entered_ns.min()))
    assert found.matrix[:, 1].tolist() == pytest.approx([0.03, 0, 0.02])
    assert found.caused_s.tolist() == pytest.approx([0, 0.05, 0])
    assert found.suffered_s.tolist() == pytest.approx([0.03, 0, 0.02])
    assert found.saved_s.tolist() == pytest.approx([0, 0.02, 0])  # from the second last to the last


def test_a_broadcast_waits_for_its_root(tmp_path: Path) -> None:
    """In a broadcast the others wait for the root, and the root for nobody."""
    root, early, late = (Made("broadcast", 1, at, end, peer=0) for at, end in ((10, 11), (0, 12), (50, 51)))
    write(tmp_path, [[root], [early], [late]])
    _, bars = _drawn(tmp_path)
    assert _ms(bars.wait_ns) == [0, 10, 0]


def test_an_async_op_blocks_from_wait_on(tmp_path: Path) -> None:
    """An async op is waiting only where its rank called wait()."""
    flags = ring_format.ASYNC | ring_format.WAITED
    ops = [
        Made("all_reduce", 1, 0, 30, waited_ms=5, flags=flags),
        Made("all_reduce", 1, 20, 30, waited_ms=25, flags=flags),
    ]
    write(tmp_path, [[ops[0]], [ops[1]]])
    _, bars = _drawn(tmp_path)
    assert _ms(bars.wait_ns) == [15, 0]
    assert _ms(bars.busy_ns) == [10, 5]


def test_a_receive_waits_for_its_send(tmp_path: Path) -> None:
    """A receive waits until the send begins; a send that was over before the receive began waited for nobody."""
    write(
        tmp_path,
        [
            [Made("send", 1, 20, 22, peer=1), Made("send", 2, 30, 31, peer=1)],
            [Made("recv", 1, 0, 23, peer=0), Made("recv", 2, 50, 51, peer=0)],
        ],
    )
    _, bars = _drawn(tmp_path)
    assert _ms(bars.wait_ns) == [0, 0, 20, 0]
    assert bars.call[0] == bars.call[2] != bars.call[1] == bars.call[3]


def test_where_somebody_never_comes_all_is_waiting(tmp_path: Path) -> None:
    """Ops of a call that a rank never came to are waiting to the end, for that rank."""
    write(
        tmp_path,
        [
            [Made("all_reduce", 1, 0, 10), Made("all_reduce", 2, 20)],
            [Made("all_reduce", 1, 0, 10), Made("send", 1, 90, 100, peer=0)],
        ],
    )
    view, bars = _drawn(tmp_path)
    assert bars.is_open.tolist() == [False, True, False, False]
    assert _ms(bars.wait_ns)[1] == 80
    found = matrix.count(view, bars, int(bars.entered_ns.min()))
    assert found.matrix[0, 1] == pytest.approx(0.08)


def test_phases_are_bands(tmp_path: Path) -> None:
    """What a program gives a name is a band from its beginning to its end, and one that is open lasts."""
    phases = [Made("phase", 1, 0, 15, phase=4), Made("phase", 2, 20, phase=5), Made("all_reduce", 1, 30, 40, phase=5)]
    write(tmp_path, [phases, phases])
    view, bars = _drawn(tmp_path)
    found = model.bands(view, bars)
    assert [band.name for band in found] == ["forward", "backward"]
    assert _ms(np.array([band.end_ns - band.begin_ns for band in found])) == [15, 20]
    assert len(bars.row) == 2


def test_without_a_common_clock_nobody_is_blamed(tmp_path: Path) -> None:
    """Where nobody compared the clocks of two hosts, no rank is said to wait, and each begins with its first op."""
    write(tmp_path / "a", [[Made("all_reduce", 1, 0, 40)], [Made("all_reduce", 1, 3000, 3041)]])
    write(tmp_path / "b", [[Made("all_reduce", 1, 0, 40)], [Made("all_reduce", 1, 3000, 3041)]], host="host-2")
    ring = "rings/attempt-0/rank-1.ring"
    (tmp_path / "a" / ring).write_bytes((tmp_path / "b" / ring).read_bytes())
    view, bars = _drawn(tmp_path / "a")
    assert not view.run.is_one_clock
    assert _ms(bars.wait_ns) == [0, 0]
    assert _ms(bars.begin_ns - bars.begin_ns.min()) == [0, 0]
    assert not matrix.count(view, bars, int(bars.entered_ns.min())).matrix.any()


def test_traffic_is_counted_by_line_and_size(tmp_path: Path) -> None:
    """Ops of one line are one line of the table; their speed is that of the time when all were there."""
    write(tmp_path, [[Made("all_reduce", n, n * 10, n * 10 + 4) for n in range(5)] for _ in range(2)])
    view, bars = _drawn(tmp_path)
    [line] = traffic.by_site(view, bars)
    assert (line.op, line.count, line.size_bytes) == ("all_reduce", 10, 40_000)
    assert line.busy_s == pytest.approx(0.04)
    [point] = traffic.by_size(view, bars)
    assert point.bytes_per_s == pytest.approx(4000 / 0.004)


def test_waits_agree_with_explain(run: Runner) -> None:
    """Of a real run, each rank has waited as long here as in `rollcall explain`."""
    view, bars = _drawn(run.latest())
    is_making = view.table.is_one_of("init", "new_group", "ddp")[bars.row]
    suffered = np.bincount(bars.rank[~is_making], bars.wait_ns[~is_making] / 1e9, minlength=3)
    assert suffered.tolist() == pytest.approx(list(view.waits.suffered_s.values()), abs=0.01)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"plain", "plain"),
        (b"\x1b[31mred\x1b[0m and \x1b]0;title\x07 done", "red and  done"),
        (b"10%\r50%\r100%\r", "100%"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"\x9b31m\x00\x07bell", "\ufffd31mbell"),
    ],
)
def test_lines_are_cleaned(raw: bytes, shown: str) -> None:
    """Of a line, only what a person can read is kept."""
    assert logs.clean(raw) == shown


def test_long_lines_are_shortened() -> None:
    """A line of a megabyte says how long it was."""
    shown = logs.clean(b"x" * (1 << 20))
    assert len(shown) < 500
    assert shown.endswith("(1,048,576 bytes)")


@pytest.mark.parametrize("mix", [0x9E3779B97F4A7C15, 0])
def test_kinds_are_what_ops_have_in_common(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mix: int) -> None:
    """Ops that differ in anything but their time are of different kinds, also where the quick way mixes them up."""
    monkeypatch.setattr(model, "_MIX", np.uint64(mix))
    ops = [
        Made("all_reduce", 1, 0, 5),
        Made("all_reduce", 2, 10, 15),
        Made("all_reduce", 3, 20, 25, size_bytes=8),
        Made("all_gather", 4, 30, 35, size_bytes=8),
        Made("all_gather", 5, 40, 45, size_bytes=8, phase=4),
    ]
    view, bars = _drawn(write(tmp_path, [ops]))
    found = model.kinds(view, bars)
    assert len(found.told) == 4
    assert [found.told[number]["op"] for number in found.number] == [op.op for op in ops]
    assert [found.told[number]["bytes"] for number in found.number] == [op.size_bytes for op in ops]
    assert found.number[0] == found.number[1]
