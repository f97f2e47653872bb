"""Generates programs, runs them, and says how well explain names their bugs.

make fuzz-explain N=200            200 seeds: a mutant and the correct program of each
make fuzz-explain SEED=17          one seed; keeps its scripts and run folders, and prints all that explain says
make fuzz-explain N=50 FUZZ=--identical   runs the correct programs with and without recording, and compares results
make fuzz-explain SEED=17 FUZZ='--keep tests/explain/fuzzed'   keeps the scripts of a seed for the tests
make fuzz-explain N=50 FUZZ='--peers 20'  also asks torch's own tools about 20 of the mutants
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.fuzz import kept, mutations, programs, score, worlds
from benchmarks.fuzz.guilt import Mutant
from benchmarks.fuzz.score import Result
from benchmarks.fuzz.worlds import Ended, Job

_MOST_SEEDS = 1 << 31


@dataclass(frozen=True)
class Case:
    """One program to run: of a seed, with its bug or without."""

    seed: int
    mutant: Mutant | None
    job: Job


def main() -> int:
    options = _options()
    options.out.mkdir(parents=True, exist_ok=True)
    first = options.first if options.first is not None else random.randrange(_MOST_SEEDS)
    if options.keep is not None:
        return _keep(options.seed, options.keep)
    if options.seed is not None:
        return _replay(options.seed, options.out)
    seeds = range(first, first + options.count)
    print(f"seeds {seeds.start} to {seeds.stop - 1}")
    if options.identical:
        return _compare_recorded(seeds, options)
    results = _run(seeds, options)
    if options.peers:
        _show_peers(results, options.peers)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("count", type=int, nargs="?", default=100, help="Number of seeds.")
    parser.add_argument("--first", type=int, help="The first seed (default: a random one).")
    parser.add_argument("--seed", type=int, help="Run one seed again, and keep everything.")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="With --seed: write its scripts there, for a test.")
    parser.add_argument("--identical", action="store_true", help="Compare results with and without recording.")
    parser.add_argument("--peers", type=int, default=0, metavar="K", help="Ask torch's own tools about K mutants.")
    parser.add_argument("--at-once", type=int, default=4, help="Worlds that run at the same time.")
    parser.add_argument("--limit", type=float, default=3600, help="Begin no more programs after so many seconds.")
    parser.add_argument("--out", type=Path, default=Path(".rollcall/fuzz"), help="Folder for what failed.")
    return parser.parse_args()


def cases(seed: int, home: Path) -> list[Case]:
    """The correct program of a seed, and its mutant if it has one."""
    script = programs.make(seed)
    mutant = mutations.mutate(script)
    found = [_case(seed, None, script.text, home / f"{seed}-correct", script.world_size)]
    if mutant is not None:
        found.append(_case(seed, mutant, mutant.script.text, home / f"{seed}-mutant", script.world_size))
    return found


def _case(seed: int, mutant: Mutant | None, text: str, folder: Path, world_size: int) -> Case:
    folder.mkdir(parents=True)
    path = folder / "program.py"
    path.write_text(text)
    return Case(seed, mutant, Job(folder.name, path, folder, world_size))


def _run(seeds: range, options: argparse.Namespace) -> list[Result]:
    began_s = time.monotonic()
    results, correct, hidden = [], [], 0
    with tempfile.TemporaryDirectory(prefix="fuzz-") as home, open(options.out / "failed.txt", "w") as failed:
        for seed, pair in _pairs(seeds, Path(home), options):
            judged = {is_mutant: score.judge(seed, case.mutant, ended) for is_mutant, (case, ended) in pair.items()}
            correct.append(judged[False])
            if True in judged:
                printed = {is_mutant: ended.printed for is_mutant, (_, ended) in pair.items()}
                if score.is_seen(judged[True], printed[True], printed[False]):
                    results.append(judged[True])
                else:
                    hidden += 1
            for result in judged.values():
                if not result.is_right and (result.mutant is None or result in results):
                    print(result.in_words(), file=failed, flush=True)
            for case, _ in pair.values():
                shutil.rmtree(case.job.folder)
            _show_progress(len(correct), len(seeds), began_s)
    _report(results, correct, hidden, time.monotonic() - began_s, options.out / "failed.txt")
    return results


Pair = dict[bool, tuple[Case, Ended]]  # whether it is the mutant


def _pairs(seeds: range, home: Path, options: argparse.Namespace) -> Iterator[tuple[int, Pair]]:
    """The runs of each seed, once all of them have ended."""
    known: dict[str, Case] = {}
    waiting: dict[int, Pair] = {}
    deadline_s = time.monotonic() + options.limit

    def jobs() -> Iterator[Job]:
        for seed in seeds:
            if time.monotonic() > deadline_s:
                return
            made = cases(seed, home)
            known.update({case.job.name: case for case in made})
            yield from (case.job for case in made)

    for ended in worlds.run(jobs(), options.at_once):
        case = known[ended.job.name]
        pair = waiting.setdefault(case.seed, {})
        pair[case.mutant is not None] = case, ended
        if len(pair) == sum(other.seed == case.seed for other in known.values()):
            for each, _ in pair.values():
                del known[each.job.name]
            yield case.seed, waiting.pop(case.seed)


def _show_progress(done: int, count: int, began_s: float) -> None:
    if done % 25 == 0:
        print(
            f"  {done} of {count} seeds, {2 * done / (time.monotonic() - began_s) * 60:.0f} programs a minute",
            flush=True,
        )


def _report(results: list[Result], correct: list[Result], hidden: int, seconds: float, failed: Path) -> None:
    broken = [result for result in correct if result.outcome != "ok"]
    blamed = [result for result in correct if not result.is_right]
    print(score.matrix(results))
    print(f"\n{'mutation':24} {'bugs':>5} {'named':>6}\n{score.by_mutation(results)}\n")
    print(score.summary(results))
    print(f"{len(blamed)} of {len(correct)} correct programs blamed")
    if broken:
        print(f"{len(broken)} correct programs did not end well: seeds {[result.seed for result in broken]}")
    print(f"{hidden} mutants left out: they end well with the right results")
    print(f"{(len(results) + len(correct) + hidden) / seconds * 60:.0f} programs a minute; what failed is in {failed}")


def _replay(seed: int, out: Path) -> int:
    """One seed again, with all that explain says."""
    from rollcall.explain import verdict

    home = out / f"seed-{seed}"
    shutil.rmtree(home, ignore_errors=True)
    found = {case.job.name: case for case in cases(seed, home.absolute())}
    for ended in worlds.run(case.job for case in found.values()):
        case = found[ended.job.name]
        result = score.judge(seed, case.mutant, ended)
        print(f"\n{case.job.folder}: {ended.outcome}, exit codes {ended.exit_codes}, {ended.seconds:.1f} s")
        print(result.in_words() if case.mutant or not result.is_right else "not blamed")
        print("right" if result.is_right else "WRONG")
        for finding in verdict.explain(case.job.folder).findings:
            print(verdict.in_words(finding))
    return 0


def _keep(seed: int, folder: Path) -> int:
    script = programs.make(seed)
    mutant = mutations.mutate(script)
    kept.write(script, None, folder / f"seed_{seed}_ok.py")
    if mutant is not None:
        kept.write(script, mutant, folder / f"seed_{seed}.py")
    return 0


def _compare_recorded(seeds: range, options: argparse.Namespace) -> int:
    """Programs must do the same with and without recording."""
    printed: dict[int, list[tuple[str, dict[int, str]]]] = {}
    differ = []
    with tempfile.TemporaryDirectory(prefix="fuzz-") as home:
        jobs = (job for seed in seeds for job in _both_ways(seed, Path(home)))
        for ended in worlds.run(jobs, options.at_once):
            seed = int(ended.job.name.partition("-")[0])
            printed.setdefault(seed, []).append((ended.outcome, ended.printed))
            if len(printed[seed]) == 2 and printed[seed][0] != printed[seed][1]:
                differ.append(seed)
    print(f"{len(differ)} of {len(seeds)} programs differ with and without recording{f': {differ}' if differ else ''}")
    return 1 if differ else 0


def _both_ways(seed: int, home: Path) -> Iterator[Job]:
    script = programs.make(seed)
    recorded = _case(seed, None, script.text, home / f"{seed}-recorded", script.world_size).job
    plain = _case(seed, None, script.text, home / f"{seed}-plain", script.world_size).job
    yield recorded
    yield replace(plain, is_recorded=False)


def _show_peers(results: list[Result], count: int) -> None:
    from benchmarks.fuzz import peers

    peers.show(results[:count])


if __name__ == "__main__":
    sys.exit(main())
