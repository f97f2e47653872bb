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
        bugs = [_program(result.mutant, Path(home)) for result in results if result.mutant]
        named = sum(result.is_right for result in results)
        print(f"{named} of {len(bugs)} bugs with the right kind, ranks and line: rollcall explain")
        for name, found in peers.scores(bugs).items():
            kinds = ", ".join(sorted({program.kind for program in found})) or "none"
            print(f"{len(found)} of {len(bugs)} bugs with the right class and ranks: {name} ({kinds})")


def _program(mutant: Mutant, home: Path) -> Program:
    """The mutant as a program of the corpus."""
    path = home / f"seed_{mutant.script.seed}.py"
    path.write_text(mutant.script.text)
    guilt = mutant.guilt
    ranks = tuple(sorted(guilt.ranks[0]))
    return Program(path, mutant.script.world_size, guilt.kinds[0], ranks, "", tuple(sorted(guilt.lines)))
