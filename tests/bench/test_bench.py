"""`rollcall bench`, as a user types it, on real ranks."""

import csv
import json
import shutil
from pathlib import Path

import pytest

from rollcall.bench import mpi
from rollcall.bench.results import Results, read
from tests.launch.conftest import Runner

QUICK = ("--max-time", "1", "--iterations", "10")


def test_everything_at_once(rollcall: Runner) -> None:
    """All ops run, are correct, and come out as a table, as JSON, as CSV and as a picture; a comparison follows."""
    found = rollcall(
        "bench", "--sizes", "8,64K", *QUICK, "--no-mpi", "--json", "now.json", "--csv", "now.csv", "--plot", "now.png"
    )
    assert found.code == 0, found.err
    assert "all_reduce float32" in found.out
    assert "the results of all" in found.out
    results = read(rollcall.folder / "now.json")
    assert {row.op for row in results.rows} == set(results.settings.ops)
    for row in results.rows:
        assert row.wrong == 0
        assert 0 < row.min_s <= row.p50_s <= row.p90_s <= row.p99_s
        assert len(row.rounds_s) == 5
        assert row.algorithm_gb_s == pytest.approx(row.size_bytes / row.mean_s / 1e9)
    table = list(csv.DictReader((rollcall.folder / "now.csv").read_text().splitlines()))
    assert [float(line["p50_s"]) for line in table] == [row.p50_s for row in results.rows]
    assert (rollcall.folder / "now.png").read_bytes().startswith(b"\x89PNG")

    _make_slow(rollcall.folder / "now.json", 1e-6, rollcall.folder / "before.json")
    again = rollcall("bench", "barrier", *QUICK, "--no-mpi", "--compare", "before.json")
    assert again.code == 1, again.err
    assert "1 of 1 slower beyond noise, barrier" in again.out


def _make_slow(path: Path, factor: float, target: Path) -> None:
    """The same results, as if all had taken so many times as long."""
    facts = json.loads(path.read_text())
    for row in facts["rows"]:
        row["rounds_s"] = [each * factor for each in row["rounds_s"]]
    target.write_text(json.dumps(facts))


def test_several_hosts(rollcall: Runner) -> None:
    """Between hosts, latency and bandwidth of each pair come along, and figures of Open MPI do not."""
    found = rollcall("bench", "send_one_way", "--virtual-hosts", 3, "--sizes", "8", *QUICK, "--json", "now.json")
    assert found.code == 0, found.err
    results = read(rollcall.folder / "now.json")
    if len(set(results.hosts)) > 1:  # where namespaces are not allowed, they share this machine's name
        assert "between hosts" in found.out
        assert len(results.pairs) == 3
        assert all(pair.latency_s > 0 and pair.gb_s > 0 for pair in results.pairs)
        assert "these of several hosts" in found.out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("all_red",), "all_red is not an op that can be measured: use all_reduce"),
        (("--dtype", "float8"), "float8 is not a dtype that can be measured"),
        (("--sizes", "8-"), "'' is not a size"),
        (("--place", "beside"), "--place beside is not known"),
        (("-n", "1"), "one rank has nobody to speak to"),
        (("--compare", "none.json"), "cannot read none.json"),
        (("--json", "no/such/folder.json"), "cannot write no/such/folder.json"),
        (("--max-time", "0"), "--max-time is in seconds above 0"),
        (("--link", "1gbit"), "--link is for several hosts"),
    ],
)
def test_bad_input(words: tuple[str, ...], sentence: str, rollcall: Runner) -> None:
    """What cannot be measured is said in one sentence, before anything starts."""
    found = rollcall("bench", *words)
    assert found.code == 2
    assert found.err.startswith("rollcall: ")
    assert sentence in found.err
    assert found.err.count("\n") == 1


@pytest.mark.skipif(not (shutil.which("mpirun") and shutil.which("mpicc")), reason="no Open MPI here")
def test_open_mpi_beside(rollcall: Runner) -> None:
    """Where Open MPI is installed, each op has its figure beside ours."""
    found = rollcall("bench", "all_reduce", "send_two_way", "--sizes", "8,1K", *QUICK, "--json", "now.json")
    assert found.code == 0, found.err
    results = read(rollcall.folder / "now.json")
    assert results.mpi is not None
    assert results.mpi.missing == ""
    assert {(row.op, row.size_bytes) for row in results.mpi.rows} == {(row.op, row.size_bytes) for row in results.rows}
    assert "Open MPI" in found.out


def test_without_open_mpi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without mpirun, one line says what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    facts = {"settings": {}, "ranks": 2, "hosts": [], "backend": "gloo", "device": "cpu", "versions": {}, "seconds": 1}
    assert "install openmpi-bin" in mpi.measure(Results.model_validate(facts)).missing
