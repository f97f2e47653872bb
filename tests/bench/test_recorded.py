"""`rollcall bench --like RUN` and `--groups`: the calls of a mesh, at the same time."""

from rollcall.bench.recorded import _at_once
from rollcall.bench.results import read
from rollcall.bench.settings import parse_groups
from tests.rollcall_command import Runner

PROGRAM = """\
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("row", "column"))
for _ in range(3):
    dist.all_reduce(torch.ones(1000), group=mesh["column"].get_group())
    dist.all_reduce(torch.ones(64), group=mesh["row"].get_group())
    dist.all_gather([torch.empty(250) for _ in range(4)], torch.ones(250))
dist.destroy_process_group()
"""
QUICK = ("--max-time", 2, "--iterations", 10)


def test_calls_of_a_recorded_run_are_measured_again(warm_rollcall: Runner) -> None:
    """Its ops, sizes and groups; then rows of a mesh by name, with steps of two, queued."""
    warm_rollcall.script(PROGRAM)
    assert warm_rollcall("run", "-n", 4, "script.py").code == 0
    found = warm_rollcall("bench", "--like", "latest", *QUICK, "--json", "now.json")
    assert found.code == 0, found.err
    rows = read(warm_rollcall.folder / "now.json").rows
    assert {(row.op, row.size_bytes, row.groups, row.calls) for row in rows} == {
        ("all_reduce", 4000, "ranks 0-1; ranks 2-3", 3),
        ("all_reduce", 256, "ranks 0,2; ranks 1,3", 3),
        ("all_gather", 4000, "ranks 0-3", 3),
    }
    assert all(row.recorded_s and row.recorded_s > 0 and not row.wrong for row in rows)
    assert "these calls took" in found.out
    options = ("--groups", "rows:2x2", "--sizes", "1K-4K", "--step", 2, "--queue", "--place", "in")
    found = warm_rollcall("bench", "all_reduce", "-n", 4, *options, *QUICK, "--json", "rows.json")
    assert found.code == 0, found.err
    rows = read(warm_rollcall.folder / "rows.json").rows
    assert [(row.size_bytes, row.groups, row.wrong) for row in rows] == [
        (size, "ranks 0-1; ranks 2-3", 0) for size in (1024, 2048, 4096)
    ]
    assert all(row.bus_gb_s == row.algorithm_gb_s for row in rows)  # 2(n-1)/n of groups of two
    bad = warm_rollcall("bench", "--like", "latest", "-n", 2)
    assert (bad.code, bad.err) == (2, "rollcall: the recorded run had 4 ranks, and this command starts 2: start 4\n")


def test_groups_of_a_mesh() -> None:
    """Rows are neighbours, columns are not."""
    assert parse_groups("rows:2x3", 6) == ((0, 1, 2), (3, 4, 5))
    assert parse_groups("columns:2x3", 6) == ((0, 3), (1, 4), (2, 5))


def test_only_groups_that_can_call_together_go_together() -> None:
    """The same op, size and number of calls, and no rank in two groups."""
    rows, other = ((0, 1), (2, 3)), (0, 2)
    found = _at_once({("all_reduce", 8, ranks): [1.0, 2.0] for ranks in (*rows, other)})
    assert {key[2]: len(times) for key, times in found.items()} == {rows: 4, (other,): 2}
    unlike = _at_once({("all_reduce", 8, rows[0]): [1.0], ("all_reduce", 8, rows[1]): [1.0, 2.0]})
    assert {key[2] for key in unlike} == {(rows[0],), (rows[1],)}
