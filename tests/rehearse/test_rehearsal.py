"""Scripts for GPUs as the ranks of a world that is not there."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rollcall.protocol.plan import Program
from rollcall.rehearse import forked_ranks, rehearsal, terminal
from rollcall.rehearse.check import check
from rollcall.rehearse.rehearsal import Rehearsal
from rollcall.rehearse.settings import GPUS, RehearsalSettings
from rollcall.worker.fork_server import ForkServer

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    started = forked_ranks.start_server(rehearsal.build_library())
    yield started
    started.close()


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROLLCALL_DIR", str(tmp_path / ".rollcall"))


def rehearse(server: ForkServer, name: str, ranks: int, steps: int = 0) -> Rehearsal:
    settings = RehearsalSettings(ranks, 4, tuple(range(ranks)), steps, GPUS["h200"])
    return rehearsal.run(settings, Program("script", str(PROGRAMS / f"{name}.py"), ()), server)


def test_a_rank_with_fewer_batches_is_found_before_the_training_runs(server: ForkServer, tmp_path: Path) -> None:
    outcome = rehearse(server, "training", 4)
    verdict = outcome.explanation.verdict
    guilty = (PROGRAMS / "training.py").read_text().split("# GUILTY")[0].count("\n") + 1
    assert verdict is not None
    assert (verdict.kind, verdict.ranks) == ("ddp-uneven-inputs", (2,))
    assert guilty in [site.line for site in verdict.sites]
    (unknown,) = outcome.unknowns
    assert not unknown.decided
    assert "only printed" in "\n".join(terminal.lines(outcome))
    assert [each.name for each in tmp_path.iterdir()] == [".rollcall"]
    assert list((outcome.folder / "files").rglob("checkpoint.pt"))


def test_what_programs_do_beside_their_training_works_as_on_a_gpu(server: ForkServer) -> None:
    outcome = rehearse(server, "as_written", 3)
    assert outcome.is_well, "\n".join(terminal.lines(outcome))
    decided = {place for unknown in outcome.unknowns for place in unknown.decided}
    for word in ("# DECIDES", "# TELLS"):  # a number is not known because it went through a tensor or an object
        assert f"as_written.py:{line_of('as_written', word)}" in decided


def line_of(name: str, word: str) -> int:
    return (PROGRAMS / f"{name}.py").read_text().split(word)[0].count("\n") + 1


def test_a_rank_does_not_fail_for_what_stopped_ranks_did_not_tell_it(server: ForkServer) -> None:
    outcome = rehearse(server, "join", 3, steps=2)
    assert outcome.is_well, "\n".join(terminal.lines(outcome))


def test_ranks_that_are_stopped_after_their_steps_are_not_blamed(server: ForkServer) -> None:
    outcome = rehearse(server, "training", 3, steps=1)
    assert outcome.explanation.verdict is None
    assert outcome.cut == (0, 1, 2)


def test_what_ranks_tell_each_other_is_true_and_the_same_as_on_real_ranks(server: ForkServer, tmp_path: Path) -> None:
    outcome = rehearse(server, "values", 3)
    assert outcome.explanation.verdict is None
    assert (outcome.unsettled, outcome.unknowns) == ((), ())
    real = check(outcome.explanation.run, Program("script", str(PROGRAMS / "values.py"), ()), 0, outcome.folder)
    assert (real.outcome, real.differences) == ("ok", ())
    assert real.ops > 30
    assert [each.name for each in tmp_path.iterdir()] == [".rollcall"]
    assert list((outcome.folder / "real" / "files").rglob("told.pt"))


def test_some_ranks_of_each_kind_are_rehearsed_with_rollcalls_own_init(server: ForkServer) -> None:
    path = PROGRAMS / "kinds.py"
    assumed = path.read_text().split("# ASSUMED")[0].count("\n") + 1
    settings = RehearsalSettings(12, 2, tuple(range(12)), 0, GPUS["h200"], ((f"kinds.py:{assumed}", 0.5),))
    outcome = rehearsal.run(settings, Program("script", str(path), ()), server, by_kinds=True)
    assert outcome.unsupported == ()
    assert outcome.kinds == (tuple(range(6)), tuple(range(6, 12)))
    assert not {3, 8, 9} & outcome.explanation.run.ranks.keys()
    assert outcome.explanation.run.ranks[0].ops[-1].size_bytes == 4 * 4  # a half of eight rows
    assert [unknown.assumed for unknown in outcome.unknowns] == ["0.5 of the rows"]
    assert outcome.explanation.verdict is not None
    said = "\n".join(terminal.lines(outcome))
    assert "assumed   3 ranks did not run" in said
    assert "ran for ranks 6-11, which make the same calls" in said


def test_partners_of_a_kind_of_ranks_are_rehearsed_too(server: ForkServer) -> None:
    """Whether rank 17 sends what its partner waits for is seen only if the partner runs."""
    settings = RehearsalSettings(32, 1, tuple(range(32)), 0, GPUS["h200"])
    program = Program("script", str(PROGRAMS / "far_messages.py"), ())
    outcome = rehearsal.run(settings, program, server, by_kinds=True)
    verdict = outcome.explanation.verdict
    assert verdict is not None
    assert line_of("far_messages", "# GUILTY") in [site.line for site in verdict.sites]
    assert {17, 25} <= set(outcome.explanation.run.ranks)
    assert len(outcome.explanation.run.ranks) < 32


def test_the_size_of_a_told_number_that_is_not_known_is_no_difference(server: ForkServer) -> None:
    settings = RehearsalSettings(2, 2, (0, 1), 0, GPUS["h200"])
    program = Program("script", str(PROGRAMS / "told_numbers.py"), ())
    found = rehearsal.run(settings, program, server, with_check=True).comparison
    assert found is not None
    assert (found.outcome, found.differences) == ("ok", ())
    assert found.unsized == (f"told_numbers.py:{line_of('told_numbers', '# TELLS')}",)


def test_a_rank_that_never_ends_is_told_with_its_line(server: ForkServer) -> None:
    path = PROGRAMS / "endless.py"
    settings = RehearsalSettings(2, 2, (0, 1), 0, GPUS["h200"], limit_s=1.0)
    outcome = rehearsal.run(settings, Program("script", str(path), ()), server)
    polls, waits = (path.read_text().split(word)[0].count("\n") + 1 for word in ("# POLLS", "# WAITS"))
    sentences = [each.sentence for each in outcome.unsupported]
    assert sentences[0].startswith((f"endless.py:{polls}: this rank computes for 1 s", f"endless.py:{polls + 1}: this"))
    assert sentences[1].startswith(f"endless.py:{waits}: this rank waits for 1 s")


def test_what_cannot_be_rehearsed_is_a_sentence_with_its_line(server: ForkServer) -> None:
    path = PROGRAMS / "walls.py"
    lines = path.read_text().splitlines()
    walls = (
        *("walls.twice(", "thrice(images)", "load_inline(", "CUDAGraph()", "images > 0", "from_address", "raise Mod"),
        *("nvidia-smi", "sparse=True", "get_default_store().get(", 'lambda: Path("of-rank-1")'),
        *("check_call(", '"mkdir made"', "< 10).all()"),
    )
    settings = RehearsalSettings(len(walls), 8, tuple(range(len(walls))), 0, GPUS["h200"])
    outcome = rehearsal.run(settings, Program("script", str(path), ()), server)
    for rank, (wall, found) in enumerate(zip(walls, outcome.unsupported, strict=True)):
        line = next(number for number, text in enumerate(lines, 1) if wall in text and "import" not in text)
        assert found.ranks == (rank,)
        assert found.sentence.startswith(f"walls.py:{line}: ")
    assert not outcome.is_well
