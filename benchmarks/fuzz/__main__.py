"""Generates programs, runs them, and says how well explain names their bugs.

make fuzz-explain N=200                            200 seeds: the correct program and the mutant of each
make fuzz-explain SEED=17                          one seed; keeps its runs, and prints all that explain says of them
make fuzz-explain N=50 FUZZ=--identical            compares what correct programs print with and without recording
make fuzz-explain N=50 FUZZ='--peers 20'           also asks torch's own tools about 20 of the mutants
make fuzz-explain N=50 FUZZ='--runs DIR'           keeps all runs in a folder
make fuzz-explain FUZZ='--again DIR'               explains the runs of that folder again, without running anything
make fuzz-explain SEED=17 FUZZ='--keep tests/explain/fuzzed'   keeps the scripts of a seed for the tests
"""

import argparse
import contextlib
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.fuzz import kept, measure, mutations, programs, score, worlds
from benchmarks.fuzz.measure import Pair, Tally

_MOST_SEEDS = 1 << 31


def main() -> int:
    options = _options()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.seed is not None:
        return _keep(options.seed, options.keep) if options.keep else _replay(options.seed, options.out)
    if options.again is not None:
        return _measure(measure.read(options.again), options)
    first = options.first if options.first is not None else random.randrange(_MOST_SEEDS)
    seeds = range(first, first + options.count)
    print(f"seeds {seeds.start} to {seeds.stop - 1}")
    with _home(options.runs) as home:
        if options.identical:
            return _compare_recorded(seeds, home, options.at_once)
        runs = measure.run(seeds, home, options.at_once, options.limit)
        return _measure(runs if options.runs else _removed_behind(runs), options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("count", type=int, nargs="?", default=100, help="Number of seeds.")
    parser.add_argument("--first", type=int, help="The first seed (default: a random one).")
    parser.add_argument("--seed", type=int, help="Run one seed again, and keep everything.")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="With --seed: write its scripts there, for a test.")
    parser.add_argument("--identical", action="store_true", help="Compare results with and without recording.")
    parser.add_argument("--peers", type=int, default=0, metavar="K", help="Ask torch's own tools about K mutants.")
    parser.add_argument("--runs", type=Path, metavar="DIR", help="Keep all runs there.")
    parser.add_argument("--again", type=Path, metavar="DIR", help="Explain the runs of that folder again.")
    parser.add_argument("--at-once", type=int, default=4, help="Worlds that run at the same time.")
    parser.add_argument("--limit", type=float, default=3600, help="Begin no more programs after so many seconds.")
    parser.add_argument("--out", type=Path, default=Path(".rollcall/fuzz"), help="Folder for what failed.")
    return parser.parse_args()


@contextlib.contextmanager
def _home(runs: Path | None) -> Iterator[Path]:
    if runs is not None:
        yield runs.absolute()
    else:
        with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
            yield Path(folder)


def _removed_behind(runs: Iterable[Pair]) -> Iterator[Pair]:
    """Hundreds of runs would fill the disk."""
    for pair in runs:
        yield pair
        for program, _ in pair:
            shutil.rmtree(program.path.parent)


def _measure(runs: Iterable[Pair], options: argparse.Namespace) -> int:
    began_s, tally = time.monotonic(), Tally()
    with open(options.out / "failed.txt", "w") as failed:
        for count, pair in enumerate(runs, 1):
            for result in tally.add(pair):
                print(result.in_words(), file=failed, flush=True)
            if count % 50 == 0:
                print(f"  {count} seeds after {time.monotonic() - began_s:.0f} s", flush=True)
    print(tally.in_words())
    count = len(tally.correct) + len(tally.mutants) + tally.harmless
    print(f"{count / (time.monotonic() - began_s) * 60:.0f} programs a minute; what failed is in {failed.name}")
    if options.peers:
        from benchmarks.fuzz import peers

        peers.show(tally.mutants[: options.peers])
    return 0


def _replay(seed: int, out: Path) -> int:
    """One seed again, with all that explain says."""
    from rollcall.explain import verdict

    home = out.absolute() / f"seed-{seed}"
    shutil.rmtree(home, ignore_errors=True)
    for pair in measure.run([seed], home, at_once=2, limit_s=60):
        for program, ended in pair:
            result = score.judge(program, ended)
            print(f"\n{program.path}: {ended.outcome}, exit codes {ended.exit_codes}, {ended.seconds:.1f} s")
            print(f"{'right' if result.is_right else 'WRONG'}: {result.in_words()}")
            for finding in verdict.explain(ended.job.folder).findings:
                print(verdict.in_words(finding))
    return 0


def _keep(seed: int, folder: Path) -> int:
    script = programs.make(seed)
    kept.write(script, None, folder / f"seed_{seed}_ok.py")
    if (mutant := mutations.mutate(script)) is not None:
        kept.write(script, mutant, folder / f"seed_{seed}.py")
    return 0


def _compare_recorded(seeds: range, home: Path, at_once: int) -> int:
    """Programs must do the same with and without recording."""
    printed: dict[int, list[tuple[str, dict[int, str]]]] = {}
    jobs = (job for seed in seeds for job in _both_ways(seed, home))
    for ended in worlds.run(jobs, at_once):
        seed = int(ended.job.name.partition("-")[0])
        printed.setdefault(seed, []).append((ended.outcome, ended.printed))
    differ = [seed for seed, results in printed.items() if results[0] != results[1]]
    print(f"{len(differ)} of {len(seeds)} programs differ with and without recording{f': {differ}' if differ else ''}")
    return 1 if differ else 0


def _both_ways(seed: int, home: Path) -> Iterator[worlds.Job]:
    script = programs.make(seed)
    for way in ("recorded", "plain"):
        program = kept.write(script, None, home / f"{seed}-{way}" / "program.py")
        yield measure.job_of(program, is_recorded=way == "recorded")


if __name__ == "__main__":
    sys.exit(main())
