"""Generated programs that explain got wrong once, and their correct versions, on warm ranks."""

from pathlib import Path

from benchmarks.fuzz import kept, score, worlds
from benchmarks.fuzz.worlds import Job

SCRIPTS = {path.stem: kept.read(path) for path in sorted((Path(__file__).parent / "fuzzed").glob("*.py"))}


def test_the_bugs_are_named_and_the_correct_programs_are_not_blamed(tmp_path: Path) -> None:
    """All of them in one test: the server of the warm ranks is started once."""
    jobs = [Job(name, script.path, tmp_path / name, script.world_size) for name, script in SCRIPTS.items()]
    results = [score.judge(SCRIPTS[ended.job.name], ended) for ended in worlds.run(jobs)]
    # On a busy machine a correct run of a tenth of a second may have a real straggler.
    wrong = [each for each in results if not each.is_right and (each.mutant or each.got.kind != "straggler")]
    assert [each.in_words() for each in wrong] == []
