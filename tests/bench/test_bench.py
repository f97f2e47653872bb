"""`rollcall bench`, as a user types it, on real ranks."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rollcall.bench import mpi
from rollcall.bench.results import BenchResults, read
from rollcall.cli.bench import bench
from rollcall.errors import UsageError
from tests.rollcall_command import Result, Runner

QUICK = ("--max-time", "1", "--iterations", "10")
has_mpi = shutil.which("mpirun") and shutil.which("mpicc")
# An earlier run in which a barrier took no time at all.
BEFORE = {
    "settings": {}, "ranks": 2, "hosts": [], "backend": "gloo", "device": "cpu", "versions": {}, "seconds": 1,
    "rows": [
        {
            "op": "barrier", "dtype": "float32", "size_bytes": 0, "place": "out", "iterations": 5, "mean_s": 1e-9,
            "min_s": 1e-9, "p50_s": 1e-9, "p90_s": 1e-9, "p99_s": 1e-9, "algorithm_gb_s": 0, "bus_gb_s": 0, "wrong": 0,
            "rounds_s": [1e-9] * 5,
        }
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """All ops at two sizes, in every form, beside an earlier run."""
    runner = Runner(tmp_path_factory.mktemp("bench"))
    (runner.folder / "before.json").write_text(json.dumps(BEFORE))
    files = ("--json", "now.json", "--csv", "now.csv", "--plot", "now.png", "--compare", "before.json")
    return runner.folder, runner("bench", "--sizes", "8,64K", *QUICK, *files)


def test_every_op_is_measured_and_right(measured: tuple[Path, Result]) -> None:
    """All ops run, each result is checked, and the figures of each fit together."""
    folder, found = measured
    assert "all_reduce float32" in found.out
    assert "the results of all" in found.out
    results = read(folder / "now.json")
    assert {row.op for row in results.rows} == set(results.settings.ops)
    for row in results.rows:
        assert row.wrong == 0
        assert 0 < row.min_s <= row.p50_s <= row.p90_s <= row.p99_s
        assert len(row.rounds_s) == 5
        assert row.algorithm_gb_s == pytest.approx(row.size_bytes / row.mean_s / 1e9)


def test_tables_and_pictures_are_of_the_same(measured: tuple[Path, Result]) -> None:
    """The CSV has what the JSON has, and the picture is one."""
    folder, _ = measured
    table = list(csv.DictReader((folder / "now.csv").read_text().splitlines()))
    assert [float(line["p50_s"]) for line in table] == [row.p50_s for row in read(folder / "now.json").rows]
    assert (folder / "now.png").read_bytes().startswith(b"\x89PNG")


def test_slower_than_before_is_exit_code_1(measured: tuple[Path, Result]) -> None:
    """An op that is slower by more than noise is named, and the exit code is 1."""
    _, found = measured
    assert found.code == 1, found.err
    assert "1 of 1 slower beyond noise, barrier" in found.out


@pytest.mark.skipif(not has_mpi, reason="no Open MPI here")
def test_open_mpi_beside(measured: tuple[Path, Result]) -> None:
    """Where Open MPI is installed, each op has its time beside ours."""
    folder, found = measured
    results = read(folder / "now.json")
    assert results.mpi is not None
    assert results.mpi.missing == ""
    assert {(row.op, row.size_bytes) for row in results.mpi.rows} == {(row.op, row.size_bytes) for row in results.rows}
    assert "Open MPI" in found.out


def test_several_hosts(rollcall: Runner) -> None:
    """Between hosts, latency and bandwidth of each pair come along, and times of Open MPI do not."""
    found = rollcall("bench", "send_one_way", "--virtual-hosts", 2, "--sizes", "8", *QUICK, "--json", "now.json")
    assert found.code == 0, found.err
    results = read(rollcall.folder / "now.json")
    if len(set(results.hosts)) > 1:  # where namespaces are not allowed, they share this machine's name
        assert "between hosts" in found.out
        assert len(results.pairs) == 1
        assert all(pair.latency_s > 0 and pair.gb_s > 0 for pair in results.pairs)
        assert "these results are from several hosts" in found.out


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"ops": ["all_red"]}, "all_red is not an op that can be measured: use all_reduce"),
        ({"dtype": "float8"}, "float8 is not a dtype that can be measured"),
        ({"sizes": "8-"}, "'' is not a size"),
        ({"place": "beside"}, "--place beside is not known"),
        ({"ranks": "1"}, "a benchmark needs 2 ranks or more"),
        ({"compare": Path("none.json")}, "cannot read none.json"),
        ({"step": 1}, "--step 1 is not possible: use a number from 2"),
        ({"ranks": "4", "groups": "rows:3x2"}, "--groups rows:3x2 has 6 ranks, and there are 4"),
        ({"ranks": "4", "groups": "4"}, "--groups 4 is not known: use rows:2x4 or columns:2x4"),
        ({"like": "latest", "ops": ["barrier"]}, "--like takes ops and groups from the run"),
        ({"max_time": 0.0}, "--max-time is in seconds above 0"),
        ({"graph": True, "queue": False}, "--graph and --no-queue contradict each other"),
        ({"link": "1gbit"}, "--link is for several hosts"),
        ({"plot": Path("now.txt")}, "name a file that ends in .png, .svg or .pdf"),
    ],
)
def test_bad_input(asked: dict[str, Any], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be measured is said in one sentence, before anything starts."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as refused:
        bench(**asked)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_a_graph_needs_nccl(rollcall: Runner) -> None:
    found = rollcall("bench", "all_reduce", "--sizes", "8", "--graph", "--no-mpi")
    assert found.code == 2
    assert "--graph needs the backend nccl, and this is gloo" in found.out + found.err


def test_bad_input_as_it_is_typed(rollcall: Runner) -> None:
    """One line, and exit code 2."""
    found = rollcall("bench", "--json", "no/such/folder.json")
    assert found.code == 2
    assert found.err == (
        "rollcall: cannot write no/such/folder.json: choose a file in a folder that exists and can be written\n"
    )


def test_without_open_mpi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without mpirun, one line says what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    facts = {"settings": {}, "ranks": 2, "hosts": [], "backend": "gloo", "device": "cpu", "versions": {}, "seconds": 1}
    assert "install openmpi-bin" in mpi.measure(BenchResults.model_validate(facts)).missing
