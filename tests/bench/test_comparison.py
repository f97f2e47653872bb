"""A later run against an earlier one: differences count only beyond noise."""

from pathlib import Path

import pytest

from rollcall.bench.comparison import compare
from rollcall.bench.results import BenchResults, Row, read
from rollcall.bench.settings import BenchSettings
from rollcall.bench.sizes import parse, parse_list, steps
from rollcall.bench.terminal import show
from rollcall.errors import UsageError


def _row(*rounds_s: float, op: str = "all_reduce", size_bytes: int = 8) -> Row:
    figures = dict.fromkeys(("mean_s", "min_s", "p50_s", "p90_s", "p99_s"), rounds_s[0])
    return Row(
        op=op, dtype="float32", size_bytes=size_bytes, place="out", iterations=5, algorithm_gb_s=1, bus_gb_s=1, wrong=0,
        rounds_s=rounds_s, **figures,
    )  # fmt: skip


def _results(*rows: Row, backend: str = "gloo") -> BenchResults:
    return BenchResults(
        settings=BenchSettings(), ranks=2, hosts=("a", "a"), backend=backend, device="cpu", seconds=1, rows=rows,
        versions={"torch": "2.13.0"},
    )  # fmt: skip


STEADY = (1.00, 1.01, 0.99, 1.00, 1.02)


@pytest.mark.parametrize(
    ("now", "judgement"),
    [
        (STEADY, "same"),
        ((1.03, 1.04, 1.03, 1.05, 1.04), "same"),  # below 5 %
        ((1.5, 1.52, 1.49, 1.5, 1.51), "slower"),
        ((0.7, 0.71, 0.7, 0.69, 0.7), "faster"),
        ((0.9, 2.0, 1.4, 0.8, 1.6), "same"),  # slower in the middle, but its rounds are all over the place
    ],
)
def test_only_what_is_beyond_noise_counts(now: tuple[float, ...], judgement: str) -> None:
    """Rounds that differ among themselves as much as from the earlier run's say nothing."""
    found = compare(_results(_row(*STEADY)), _results(_row(*now)))
    assert [each.judgement for each in found.differences] == [judgement]


def test_the_sentence_names_the_worst() -> None:
    """The verdict counts what became slower and faster, and names the worst and the best."""
    then = _results(_row(*STEADY), _row(*STEADY, size_bytes=1024), _row(*STEADY, op="barrier"))
    slow, slower = (each * 2 for each in STEADY), (each * 3 for each in STEADY)
    now = _results(_row(*slow), _row(*slower, size_bytes=1024), _row(*(each / 2 for each in STEADY), op="barrier"))
    sentence = compare(then, now).sentence
    assert "2 of 3 slower beyond noise, all_reduce of 1 KiB most: 3.00 × the time" in sentence
    assert "1 of 3 faster beyond noise, barrier" in sentence


def test_unlike_runs_are_named() -> None:
    """What differs between the two runs beyond their figures is said."""
    assert compare(_results(_row(*STEADY)), _results(_row(*STEADY), backend="nccl")).other_differences == (
        "backend: gloo then, nccl now",
    )


@pytest.mark.parametrize(("check", "said"), [(True, "1 measurements are correct"), (False, "were not checked (-c 0)")])
def test_results_that_were_not_checked_are_not_called_correct(
    check: bool, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    results = _results(_row(*STEADY))
    show(results.model_copy(update={"settings": BenchSettings(check=check)}), None)
    assert said in capsys.readouterr().out


def test_nothing_in_common_is_an_error() -> None:
    """Two runs of different ops cannot be compared."""
    with pytest.raises(UsageError, match="has none of these ops"):
        compare(_results(_row(*STEADY)), _results(_row(*STEADY, op="barrier")))


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"format": 99}'])
def test_files_that_are_not_ours(text: str, tmp_path: Path) -> None:
    """--compare with a file that bench did not write ends with one sentence."""
    path = tmp_path / "before.json"
    path.write_text(text)
    with pytest.raises(UsageError, match="is not what `rollcall bench --json` writes"):
        read(path)


def test_results_come_back_as_they_were(tmp_path: Path) -> None:
    """What is written can be read again, equal."""
    results = _results(_row(*STEADY))
    (tmp_path / "now.json").write_text(results.model_dump_json())
    assert read(tmp_path / "now.json") == results


def test_sizes_as_people_write_them() -> None:
    """Sizes are read with and without units, and written for people."""
    assert [parse(text) for text in ("8", "8B", "64K", "64kb", "1MiB", "1G")] == [
        8,
        8,
        65536,
        65536,
        1 << 20,
        1 << 30,
    ]
    assert parse_list("8-1K") == steps(8, 1024) == (8, 32, 128, 512, 1024)
    assert parse_list("1M,8") == (8, 1 << 20)


@pytest.mark.parametrize("text", ["", "0", "eight", "-8", "8-", "1T", "64M-8"])
def test_what_is_no_size(text: str) -> None:
    """A size that cannot be is refused in words."""
    with pytest.raises(UsageError):
        parse_list(text)
