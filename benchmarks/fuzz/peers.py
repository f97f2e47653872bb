"""What torch's own tools say of mutants. The runs and the rules for what counts as named are those of the corpus."""

import tempfile
from pathlib import Path

from benchmarks.fuzz.guilt import Mutant
from benchmarks.fuzz.score import Result
from tests.explain import peers
from tests.explain.corpus import Program


def show(results: list[Result]) -> None:
    """How many of these are named by whom. A line of source is not asked of the peers."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as home:
        bugs = [_answers(result.mutant, Path(home)) for result in results if result.mutant]
        named = sum(result.is_right for result in results)
        print(f"{named} of {len(bugs)} bugs with the right kind, ranks and line: rollcall explain")
        for name, found in peers.scores(bugs).items():
            kinds = ", ".join(sorted({program.kind for program in found})) or "none"
            print(f"{len(found)} of {len(bugs)} bugs with the right class and ranks: {name} ({kinds})")


def _answers(mutant: Mutant, home: Path) -> list[Program]:
    """The mutant as a program of the corpus, with each kind and ranks that count as right."""
    path = home / f"seed_{mutant.script.seed}.py"
    path.write_text(mutant.script.text)
    guilt, lines = mutant.guilt, tuple(sorted(mutant.guilt.lines))
    return [
        Program(path, mutant.script.world_size, kind, tuple(sorted(ranks)), "", lines)
        for kind in guilt.kinds
        for ranks in guilt.ranks
    ]
