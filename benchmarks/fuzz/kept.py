"""Seeds that failed once, kept as scripts: a seed makes another program as soon as the generator changes.

What is known of the bug stands in comments at the end of the script, where it does not shift any line.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fuzz.guilt import Guilt, Mutant, Verdict
from benchmarks.fuzz.script import Script

_FACT = re.compile(r"^# (world|guilty rank|kinds|ranks|lines): (.*)$", re.M)


@dataclass(frozen=True)
class Kept:
    """A script and its bug. Without one it must not be blamed."""

    path: Path
    world_size: int
    guilty_rank: int = -1
    guilt: Guilt | None = None

    def accepts(self, verdict: Verdict, has_ended: bool) -> bool:
        if self.guilt is None:
            return verdict.kind == "nothing"
        return all(self.guilt.accepts(verdict, has_ended))


def write(script: Script, mutant: Mutant | None, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = (mutant.script if mutant else script).text
    path.write_text(f"{text}\n{facts(script.world_size, mutant)}\n")


def facts(world_size: int, mutant: Mutant | None) -> str:
    known = {"world": str(world_size)}
    if mutant is not None:
        guilt = mutant.guilt
        known["guilty rank"] = str(mutant.guilty_rank)
        known["kinds"] = ", ".join(guilt.kinds)
        known["ranks"] = " | ".join(" ".join(map(str, sorted(ranks))) for ranks in dict.fromkeys(guilt.ranks))
        known["lines"] = " ".join(map(str, sorted(guilt.lines)))
    return "\n".join(f"# {name}: {value}" for name, value in known.items())


def read(path: Path) -> Kept:
    known = dict(_FACT.findall(path.read_text()))
    world_size = int(known["world"])
    if "kinds" not in known:
        return Kept(path, world_size)
    ranks = tuple(frozenset(map(int, each.split())) for each in known["ranks"].split("|"))
    lines = frozenset(map(int, known["lines"].split()))
    return Kept(path, world_size, int(known["guilty rank"]), Guilt(tuple(known["kinds"].split(", ")), ranks, lines))
