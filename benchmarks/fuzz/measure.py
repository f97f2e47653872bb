"""Runs the programs of many seeds, and counts what explain gets right."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.fuzz import kept, mutations, programs, score, worlds
from benchmarks.fuzz.kept import Program
from benchmarks.fuzz.score import Result
from benchmarks.fuzz.worlds import Ended, Job

Pair = list[tuple[Program, Ended]]  # the correct program of a seed, and its mutant if it has one


def write(seed: int, home: Path) -> list[Program]:
    """The programs of a seed, each in a folder of its own."""
    script = programs.make(seed)
    mutant = mutations.mutate(script)
    correct = kept.write(script, None, home / f"{seed}-correct" / "program.py")
    return [correct, *([kept.write(script, mutant, home / f"{seed}-mutant" / "program.py")] if mutant else [])]


def job_of(program: Program, is_recorded: bool = True) -> Job:
    folder = program.path.parent
    return Job(folder.name, program.path, folder, program.world_size, is_recorded)


def run(seeds: Iterable[int], home: Path, at_once: int, limit_s: float) -> Iterator[Pair]:
    """The runs of each seed, once all of them have ended. No seed begins after the limit."""
    counts: Counter[int] = Counter()
    known: dict[str, Program] = {}
    ended: dict[int, Pair] = {}
    deadline_s = time.monotonic() + limit_s

    def jobs() -> Iterator[Job]:
        for seed in seeds:
            if time.monotonic() > deadline_s:
                return
            made = write(seed, home)
            counts[seed] = len(made)
            known.update({program.path.parent.name: program for program in made})
            yield from map(job_of, made)

    for each in worlds.run(jobs(), at_once):
        program = known.pop(each.job.name)
        pair = ended.setdefault(program.seed, [])
        pair.append((program, each))
        if len(pair) == counts[program.seed]:
            yield ended.pop(program.seed)


def read(home: Path) -> Iterator[Pair]:
    """The runs that an earlier measurement has kept."""
    for folder in sorted(home.glob("*-correct"), key=lambda path: int(path.name.partition("-")[0])):
        mutant = folder.with_name(folder.name.replace("correct", "mutant"))
        found = [kept.read(each / "program.py") for each in (folder, mutant) if (each / "run.json").exists()]
        yield [(program, worlds.read(job_of(program))) for program in found]


@dataclass
class Tally:
    """What was counted so far."""

    correct: list[Result] = field(default_factory=list)
    mutants: list[Result] = field(default_factory=list)
    harmless: int = 0

    def add(self, pair: Pair) -> list[Result]:
        """Judge the runs of one seed; returns what is wrong."""
        right_prints = next((ended.printed for program, ended in pair if program.mutant is None), None)
        wrong = []
        for program, ended in pair:
            result = score.judge(program, ended)
            if program.mutant is None:
                self.correct.append(result)
            elif score.is_seen(program.mutant, ended, right_prints):
                self.mutants.append(result)
            else:
                self.harmless += 1
                continue
            wrong += [] if result.is_right else [result]
        return wrong

    def in_words(self) -> str:
        blamed = [result for result in self.correct if not result.is_right]
        broken = [result.seed for result in self.correct if result.outcome != "ok"]
        lines = [score.matrix(self.mutants), "", score.by_mutation(self.mutants), "", score.summary(self.mutants)]
        lines += [f"{len(blamed)} of {len(self.correct)} correct programs blamed"]
        lines += [f"{len(broken)} correct programs did not end well: seeds {broken}"] if broken else []
        lines += [f"{self.harmless} mutants left out: they end well with the right results"]
        return "\n".join(lines)
