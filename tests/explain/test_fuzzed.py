"""Generated programs that explain got wrong once, and their correct versions, on warm ranks."""

from pathlib import Path

import pytest
from benchmarks.fuzz import kept, score, worlds
from benchmarks.fuzz.worlds import Ended, Job

SCRIPTS = {path.stem: kept.read(path) for path in sorted((Path(__file__).parent / "fuzzed").glob("*.py"))}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """All of them on one server, two worlds at a time."""
    home = tmp_path_factory.mktemp("fuzzed")
    jobs = [Job(name, script.path, home / name, script.world_size) for name, script in SCRIPTS.items()]
    return {each.job.name: each for each in worlds.run(jobs, at_once=2)}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_bug_is_named_and_the_correct_program_is_not_blamed(name: str, ended: dict[str, Ended]) -> None:
    result = score.judge(SCRIPTS[name], ended[name])
    # On a busy machine a run of a tenth of a second may have a real straggler.
    is_late = result.mutant is None and result.got.kind == "straggler"
    assert result.is_right or is_late, result.in_words()
