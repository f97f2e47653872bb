"""Programs in files, with what is known of their bug. A seed makes another program as soon as the generator changes.

The facts stand in comments at the end of the script, where they do not shift any line.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fuzz.guilt import Guilt, Mutant
from benchmarks.fuzz.script import Script

_FACT = re.compile(r"^# (seed|world|mutation|guilty rank|kinds|ranks|lines|left out if harmless): (.*)$", re.M)


@dataclass(frozen=True)
class Program:
    """A script in a file. Without a bug it must not be blamed."""

    path: Path
    seed: int
    world_size: int
    mutant: Mutant | None = None


def write(script: Script, mutant: Mutant | None, path: Path) -> Program:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = (mutant.script if mutant else script).text
    facts = {"seed": script.seed, "world": script.world_size, **(_facts(mutant) if mutant else {})}
    path.write_text(text + "\n" + "".join(f"# {name}: {value}\n" for name, value in facts.items()))
    return Program(path, script.seed, script.world_size, mutant)


def _facts(mutant: Mutant) -> dict[str, str | int]:
    guilt = mutant.guilt
    return {
        "mutation": mutant.mutation,
        "guilty rank": mutant.guilty_rank,
        "kinds": ", ".join(guilt.kinds),
        "ranks": " | ".join(" ".join(map(str, sorted(ranks))) for ranks in dict.fromkeys(guilt.ranks)),
        "lines": " ".join(map(str, sorted(guilt.lines))),
        "left out if harmless": "no" if guilt.is_always_seen else "yes",
    }


def read(path: Path) -> Program:
    facts = dict(_FACT.findall(path.read_text()))
    seed, world_size = int(facts["seed"]), int(facts["world"])
    return Program(path, seed, world_size, _mutant(Script(seed, world_size), facts) if "kinds" in facts else None)


def _mutant(script: Script, facts: dict[str, str]) -> Mutant:
    ranks = tuple(frozenset(map(int, each.split())) for each in facts["ranks"].split("|"))
    lines = frozenset(map(int, facts["lines"].split()))
    guilt = Guilt(tuple(facts["kinds"].split(", ")), ranks, lines, facts["left out if harmless"] == "no")
    return Mutant(script, int(facts["guilty rank"]), guilt, facts["mutation"])
